"""The processes of a job on a Ray cluster, as the machine where it was launched sees them.

Rooms before and after: ``launch.ray_cluster`` makes the actors and a crew of them; ``launch.ray_host`` is in each actor;
``launch.follow`` gets lines and ends as if the processes were here.

What always holds:
    * Every process is asked again as soon as it has answered, by one thread, so a job costs the cluster a small
      call a second and process.
    * Where each server is now goes along with every question to a trainer: one that came back is known to all
      within two seconds.
    * What a process says on standard error is appended to its log here.
"""

import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
import ray.exceptions
import structlog

import pserver
from trainer.launch.child import END_S, Events, how_ended, last_words
from trainer.launch.local import READY
from trainer.launch.ray_host import Told, write_whole
from trainer.launch.ray_job import shard_file

log = structlog.get_logger(__name__)

_LOST = -9  # a process whose machine is gone: as if it had been killed
_LOOK_S = 0.2
_HEAD_S = 2.0  # for the head of the cluster to take a connection
_SAID_MAX = 300


class Remote:
    """A process on some machine of the cluster, as ``launch_child.Started``.

    Owner: the thread of its crew, until its end is in the queue of events.

    Attributes:
        name: such as ``trainer 2``.
        number: among those of its kind, from 0.
        log: the file here with its standard error.
        actor: Ray's handle.
        restarts_left: how often it may end and be started again.
        words: arguments of the process.
        again: more of them, for a start after one that went well.
        turn: of the next question.
        was_ready: whether it is a server that was ready once.
        is_away: whether the last question found nobody.
    """

    def __init__(
        self, name: str, number: int, actor: Any, *, words: Sequence[str], log: Path
    ) -> None:
        """Take over an actor that was asked nothing yet.

        Args:
            name: of the process.
            number: of it.
            actor: of ``launch_ray_host.Host``.
            words: arguments of the process.
            log: written anew.
        """
        self.name, self.number, self.log = name, number, log
        self.actor = actor
        self.words = words
        self.restarts_left = 0
        self.again: Sequence[str] = ()
        self.turn = 0
        self.was_ready = self.is_away = False
        self._status = 0
        self._how = ""
        self._why = ""
        log.write_text("", encoding="utf-8")

    def wait(self) -> int:
        """Return the exit status of a process that has ended."""
        return self._status

    def how(self) -> str:
        """Return how it ended."""
        return self._how or how_ended(self._status)

    def reason(self) -> str:
        """Return the last thing that it said, or why nothing is heard of it any more."""
        return self._why or last_words(self.log)

    def hear(self, text: str) -> None:
        """Append to the log."""
        if text:
            with self.log.open("a", encoding="utf-8") as file:
                file.write(text)

    def end(self, status: int, *, how: str = "", why: str = "") -> None:
        """Note that it has ended.

        Args:
            status: of its exit.
            how: it ended, if the status does not say so.
            why: if its log does not say so.
        """
        self._status, self._how, self._why = status, how, why


class Crew:
    """All processes of a job, asked by a thread of its own. Owner: the thread that launched the job.

    Attributes:
        files: what every process gets, by name; owner: the thread of the crew.
    """

    def __init__(
        self,
        servers: Sequence[Remote],
        trainers: Sequence[Remote],
        events: Events,
        *,
        folder: Path,
        files: dict[str, str],
    ) -> None:
        """Begin to ask.

        Args:
            servers: shard 0 first.
            trainers: trainer 0 first.
            events: get the lines of trainers, and the ends of all.
            folder: here, for the addresses of servers.
            files: what every process gets.
        """
        self._servers, self._trainers = list(servers), list(trainers)
        self._events = events
        self._folder = folder
        self.files = files
        self._head: str = ray.get_runtime_context().gcs_address
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ask processes", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Ask no more, and end all processes: trainers first; those of a cluster that is gone have ended."""
        self._stop.set()
        self._thread.join()
        for processes in (self._trainers, self._servers):
            if not self._has_cluster():
                return  # what it ran has ended with it
            ends = {process.actor.end.remote(): process for process in processes}
            waiting, until = list(ends), time.monotonic() + 2 * END_S
            while waiting and time.monotonic() < until and self._has_cluster():
                done, waiting = ray.wait(waiting, timeout=_LOOK_S)
                for reply in done:
                    try:
                        ends[reply].hear(ray.get(reply))
                    except ray.exceptions.RayError:
                        continue  # its machine is gone, and the process with it
            if self._has_cluster():
                for process in processes:
                    ray.kill(process.actor)

    def _has_cluster(self) -> bool:
        """Return whether the cluster still answers: without one Ray waits a minute, then ends this process."""
        host, _, port = self._head.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_HEAD_S).close()
        except OSError:
            return False
        return True

    def _run(self) -> None:
        """Ask all, again and again."""
        processes = [*self._servers, *self._trainers]
        try:
            asked = {self._ask(process): process for process in processes}
            while asked and not self._stop.is_set():
                answered, _ = ray.wait(list(asked), timeout=_LOOK_S)
                for reply in answered:
                    process = asked.pop(reply)
                    if self._take(process, reply):
                        asked[self._ask(process)] = process
        except BaseException as error:
            # Nobody would hear of any process again; the first one's end ends the job.
            processes[0].end(_LOST, how="is not asked any more", why=repr(error))
            self._events.put((processes[0], None))
            raise

    def _ask(self, process: Remote) -> Any:
        words = [*process.words, *(process.again if process.was_ready else ())]
        return process.actor.ask.remote(process.turn, words, dict(self.files))

    def _take(self, process: Remote, reply: Any) -> bool:
        """Take an answer, and return whether to ask again."""
        try:
            told: Told = ray.get(reply)
        except ray.exceptions.ActorUnavailableError as error:
            if not process.is_away:
                log.warning("waits for a process", process=process.name, reason=_said(error))
            process.is_away = True
            self._stop.wait(_LOOK_S)
            return True
        except pserver.ConfigError as error:
            process.end(pserver.USAGE_EXIT, how="cannot run", why=_said(error))
        except ray.exceptions.RayError as error:
            process.end(_LOST, how="is lost", why=_said(error))
            log.warning("a process is lost", process=process.name, reason=_said(error))
        else:
            process.turn += 1
            process.is_away = False
            process.hear(told.log)
            if process in self._servers:
                return self._hear_server(process, told)
            for line in told.lines:
                self._events.put((process, line))
            if told.status is None:
                return True
            process.end(told.status)
        self._events.put((process, None))
        return False

    def _hear_server(self, server: Remote, told: Told) -> bool:
        """Take what a server did, and return whether to ask again."""
        for line in told.lines:
            server.hear(f"{line}\n")
            if match := READY.search(line):
                self._place(server, match[1])
        if told.status is None:
            return True
        server.end(told.status)
        if server.was_ready and server.restarts_left:
            server.restarts_left -= 1
            log.warning("a server is started again", server=server.number, reason=server.reason())
            return True
        self._events.put((server, None))
        return False

    def _place(self, server: Remote, endpoint: str) -> None:
        """Let everybody know where a server is."""
        if server.was_ready:
            log.warning("a server is back", server=server.number, endpoint=endpoint)
        server.was_ready = True
        name = shard_file(server.number)
        self.files[name] = endpoint
        write_whole(self._folder / name, endpoint)


def _said(error: BaseException) -> str:
    """Return an error of Ray's in one line: the last words of its cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:_SAID_MAX] if lines else type(error).__name__
