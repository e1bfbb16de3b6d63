"""The oracle of optimizers: each rule as its formula stands in the paper, in plain numpy.

Imported by nothing but tests. ``Rule`` steps one row, in the dtype that it is given: float64 shows
what exact arithmetic would do. Nothing is lazy, scaled, fused or tabulated here, even where the
kernels are: powers are powers, a decay that is due n times is done n times, and FTRL's z is the
paper's.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Row: TypeAlias = NDArray[np.floating]

_ADAM: dict[str, float | str] = {"lr": 0.001, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8}

DEFAULTS: dict[str, dict[str, float | str]] = {
    "sgd": {"lr": 0.05},
    "momentum": {"lr": 0.05, "momentum": 0.9},
    "nesterov": {"lr": 0.05, "momentum": 0.9},
    "adagrad": {
        "lr": 0.05,
        "eps": 1e-8,
        "initial": 0.0,
        "state": "element",
        "accumulate": "before",
    },
    "adagrad_decay": {"lr": 0.05, "initial": 0.1, "decay_rate": 0.9, "decay_step": 100000},
    "adam": {**_ADAM, "step": "row"},
    "amsgrad": {**_ADAM, "step": "row"},
    "adamw": {**_ADAM, "step": "row", "weight_decay": 0.01},
    "lamb": {**_ADAM, "weight_decay": 0.0, "step": "row"},
    "shared_adam": _ADAM,
    "rmsprop": {
        "lr": 0.01,
        "rho": 0.99,
        "eps": 1e-8,
        "momentum": 0.0,
        "variant": "v1",
        "eps_at": "outside",
    },
    "adadelta": {"lr": 1.0, "rho": 0.9, "eps": 1e-6},
    "ftrl": {"lr": 0.05, "l1": 0.0, "l2": 0.0, "beta": 1.0, "initial": 0.0, "lr_power": -0.5},
    "group_adagrad": {"lr": 0.05, "l2": 0.0, "beta": 1.0, "initial": 0.0},
    "sum": {"lr": 1.0},
    "summary": {"lr": 1.0, "decay": 0.999999},
}
"""Every optimizer with its options in order and what each is when it is left out."""

COMMON: dict[str, float | str] = {
    "show_scale": "off",
    "weight_decay": 0.0,
    "decay": "decoupled",
    "clip": np.inf,
    "weight_low": -np.inf,
    "weight_high": np.inf,
}
"""Options of every rule."""

WORDS = ("state", "accumulate", "step", "variant", "eps_at", "decay", "show_scale")


def read_rule(text: str) -> tuple[str, dict[str, str]]:
    """Return the name and the written options of ``name:option=value,...``."""
    name, _, rest = text.partition(":")
    return name, dict(item.split("=") for item in rest.split(",") if item)


class Rule:
    """An optimizer as its formula says, on a row of weights and then state; lr is constant."""

    def __init__(self, text: str, dim: int) -> None:
        self.name, written = read_rule(text)
        options = {**COMMON, **DEFAULTS[self.name], **written}
        words = [k for k in WORDS if k in COMMON or k in DEFAULTS[self.name]]
        if self.name == "summary":
            words.remove("decay")  # a number of its own
        self.words = {k: str(options[k]) for k in words}
        self.numbers = {k: float(v) for k, v in options.items() if k not in words}
        self.dim = dim

    def get(self, *names: str) -> list[float]:
        """Return the values of some numbers."""
        return [self.numbers[name] for name in names]

    @property
    def state_dim(self) -> int:
        """Return the floats of state a row."""
        n, counted = self.dim, int(self.words.get("step") == "row")
        return {
            "sgd": 0,
            "momentum": n,
            "nesterov": n,
            "adagrad": n if self.words.get("state") == "element" else 1,
            "adagrad_decay": 1 + n,
            "adam": 2 * n + counted,
            "amsgrad": 3 * n + counted,
            "adamw": 2 * n + counted,
            "lamb": 2 * n + counted,
            "shared_adam": 4,
            "rmsprop": 2 * n if self.numbers.get("momentum") else n,
            "adadelta": 2 * n,
            "ftrl": 2 * n,
            "group_adagrad": 1,
            "sum": 0,
            "summary": 0,
        }[self.name]

    @property
    def first_state(self) -> list[float]:
        """Return what the floats of state begin with."""
        initial = self.numbers.get("initial", 0.0)
        if self.name == "adagrad":
            return [initial if self.words["accumulate"] == "before" else 0.0] * self.state_dim
        if self.name == "adagrad_decay":
            return [0.0] + [initial] * self.dim
        if self.name == "ftrl":
            return [initial] * self.dim + [0.0] * self.dim
        if self.name == "group_adagrad":
            return [initial]
        if self.name == "shared_adam":
            return [0.0, 0.0, *self.get("beta1", "beta2")]
        return [0.0] * self.state_dim

    def step(self, row: Row, grad: Row, *, version: int = 0, show: float = 1.0) -> None:
        """Apply one gradient to a row (dim + state_dim,), in place and in the row's dtype."""
        if self.words["show_scale"] == "on":
            grad = grad / np.float32(show)
        lr, clip, decay, low, high = self.get(
            "lr", "clip", "weight_decay", "weight_low", "weight_high"
        )
        w, g = row[: self.dim], np.clip(grad.astype(row.dtype), -clip, clip)
        if self.name in ("lamb", "summary"):
            pass  # its decay is inside the rule
        elif self.words["decay"] == "gradient":
            g = g + decay * w
        else:
            w -= lr * decay * w
        if self.name in ("adam", "adamw", "amsgrad", "lamb"):
            self._moments(row, g, version + 1)
        elif self.name == "adagrad_decay":
            self._adagrad_decay(row, g, version + 1)
        else:
            steps: dict[str, Callable[[Row, Row], None]] = {
                "sgd": self._sgd,
                "momentum": self._momentum,
                "nesterov": self._momentum,
                "adagrad": self._adagrad,
                "shared_adam": self._shared_adam,
                "rmsprop": self._rmsprop,
                "adadelta": self._adadelta,
                "ftrl": self._ftrl,
                "group_adagrad": self._group_adagrad,
                "sum": self._sum,
                "summary": self._summary,
            }
            steps[self.name](row, g)
        w[:] = np.clip(w, low, high)

    def _sgd(self, row: Row, g: Row) -> None:
        row -= self.numbers["lr"] * g

    def _sum(self, row: Row, g: Row) -> None:
        row += self.numbers["lr"] * g

    def _summary(self, row: Row, g: Row) -> None:
        lr, decay = self.get("lr", "decay")
        row[:] = decay * row + lr * g

    def _momentum(self, row: Row, g: Row) -> None:
        lr, momentum = self.get("lr", "momentum")
        w, m = row.reshape(2, self.dim)
        m[:] = momentum * m + g
        w -= lr * (m if self.name == "momentum" else g + momentum * m)

    def _adagrad(self, row: Row, g: Row) -> None:
        lr, eps, initial = self.get("lr", "eps", "initial")
        w, total = row[: self.dim], row[self.dim :]  # total: (dim,), or (1,) for state=row
        square = g * g if self.words["state"] == "element" else np.mean(g * g)
        if self.words["accumulate"] == "before":
            total += square
            w -= lr * g / (np.sqrt(total) + eps)
        else:
            w -= lr * g * np.sqrt(initial / (initial + total))
            total += square

    def _adagrad_decay(self, row: Row, g: Row, t: int) -> None:
        lr, initial, rate, every = self.get("lr", "initial", "decay_rate", "decay_step")
        w, total = row[: self.dim], row[self.dim + 1 :]
        while row[self.dim] < t // every:
            row[self.dim] += 1
            total[:] = np.maximum(initial, total * rate)
        total += g * g
        w -= lr * g / np.sqrt(total)

    def _moments(self, row: Row, g: Row, t: int) -> None:
        lr, beta1, beta2, eps, decay = self.get("lr", "beta1", "beta2", "eps", "weight_decay")
        if self.words["step"] == "row":
            row[-1] += 1
            t = int(row[-1])
        w, m, v = row[: 3 * self.dim].reshape(3, self.dim)
        m[:] = beta1 * m + (1 - beta1) * g
        v[:] = beta2 * v + (1 - beta2) * g * g
        largest = v
        if self.name == "amsgrad":
            largest = row[3 * self.dim : 4 * self.dim]
            largest[:] = np.maximum(largest, v)
        r = (m / (1 - beta1**t)) / (np.sqrt(largest / (1 - beta2**t)) + eps)
        trust = 1.0
        if self.name == "lamb":
            r = r + decay * w
            lengths = np.linalg.norm(w), np.linalg.norm(r)
            trust = float(lengths[0] / lengths[1]) if all(lengths) else 1.0
        w -= lr * trust * r

    def _shared_adam(self, row: Row, g: Row) -> None:
        lr, beta1, beta2, eps = self.get("lr", "beta1", "beta2", "eps")
        w, (m, v, power1, power2) = row[: self.dim], row[self.dim :]
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g * g
        w -= lr * np.sqrt(1 - power2) / (1 - power1) * m / (np.sqrt(v) + eps)
        row[self.dim :] = np.mean(m), np.mean(v), power1 * beta1, power2 * beta2

    def _rmsprop(self, row: Row, g: Row) -> None:
        lr, rho, eps, momentum = self.get("lr", "rho", "eps", "momentum")
        w, n = row[: self.dim], row[self.dim : 2 * self.dim]
        n[:] = rho * n + (g * g if self.words["variant"] == "v2" else (1 - rho) * g * g)
        inside = self.words["eps_at"] == "inside"
        u = g / np.sqrt(n + eps) if inside else g / (np.sqrt(n) + eps)
        if momentum:
            b = row[2 * self.dim :]
            b[:] = momentum * b + u
            u = b
        w -= lr * u

    def _adadelta(self, row: Row, g: Row) -> None:
        lr, rho, eps = self.get("lr", "rho", "eps")
        w, n, x = row.reshape(3, self.dim)
        n[:] = rho * n + (1 - rho) * g * g
        u = np.sqrt(x + eps) / np.sqrt(n + eps) * g
        x[:] = rho * x + (1 - rho) * u * u
        w -= lr * u

    def _ftrl(self, row: Row, g: Row) -> None:
        lr, l1, l2, beta, power = self.get("lr", "l1", "l2", "beta", "lr_power")
        w, n, scaled = row.reshape(3, self.dim)
        z = scaled / lr
        z += g - ((n + g * g) ** -power - n**-power) / lr * w
        n += g * g
        scaled[:] = lr * z
        step = (beta + n**-power) / lr + l2
        w[:] = np.where(np.abs(z) <= l1, 0.0, -(z - np.sign(z) * l1) / step)

    def _group_adagrad(self, row: Row, g: Row) -> None:
        lr, l2, beta = self.get("lr", "l2", "beta")
        w = row[: self.dim]
        row[self.dim] += np.max(g * g)
        eta = lr / (np.sqrt(row[self.dim]) + beta)
        u = w / eta - g
        norm = np.linalg.norm(u)
        w[:] = 0.0 if norm <= l2 else u * (1 - l2 / norm) * eta
