"""Trainers that meet with TLS: as without, in both directions at once; and no word to who is not vouched for."""

import socket
import ssl
import threading

import pytest
import torch

from collective import GroupError, PeerLostError
from collective.hetero import Receiver, StepEnd, Work
from collective.hetero_sender import Place, Sender
from collective.tls import TlsConnection, TlsFiles
from tests import certificates

LIMIT_S = 30.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the certificates of a run."""
    return certificates.made(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    """Return those of another authority."""
    return certificates.made(tmp_path_factory.mktemp("theirs"))


def files(folder, name, *, ca=None) -> TlsFiles:
    """Return the files of an end."""
    named = certificates.files(folder, name, ca=ca)
    return TlsFiles(named["tls_cert"], named["tls_key"], named["tls_ca"])


def has_refused(receiver: Receiver, why: str) -> bool:
    """Return whether a dense trainer tells that it sent somebody away, once it does."""
    for _ in range(100):
        with pytest.raises(PeerLostError) as caught:
            receiver.gather(0.1)
        if "refused: 127.0.0.1:" in str(caught.value) and why in str(caught.value):
            return True
    return False


def test_micro_batches_and_steps_go_as_without(folder):
    """A micro-batch of several pieces comes whole, its answer too, and the run ends well."""
    rows = torch.arange(300_000, dtype=torch.float32).view(100, 3000)
    receiver = Receiver("127.0.0.1:0", tls=files(folder, "server"))
    sender = Sender([receiver.address], Place(), tls=files(folder, "client"))

    answer = sender.send([rows], weight=2.0)
    work = receiver.take(LIMIT_S)
    assert isinstance(work, Work)
    assert torch.equal(work.tensors[0], rows)
    work.answer([2 * rows])
    assert torch.equal(answer.result(LIMIT_S)[0], 2 * rows)
    sender.end_step()
    end = receiver.take(LIMIT_S)
    assert isinstance(end, StepEnd)
    end.answer()
    sender.wait_step()
    sender.done()
    sender.close()

    assert receiver.take(LIMIT_S) is None
    receiver.close()


def test_both_send_at_once_more_than_the_system_holds(folder):
    """Each end sends 8 MiB in one thread while another receives: both come whole."""
    size = 8 << 20
    sent = [bytes(range(256)) * (size // 256), bytes(reversed(range(256))) * (size // 256)]
    came = [bytearray(size), bytearray(size)]
    ends: list[TlsConnection] = []

    def read(end: TlsConnection, buffer: bytearray) -> None:
        rest = memoryview(buffer)
        while rest:
            rest = rest[end.recv_into(rest) :]

    with socket.create_server(("127.0.0.1", 0)) as server:
        there = socket.create_connection(server.getsockname(), LIMIT_S)
        here, _ = server.accept()
    accepting = files(folder, "server").accepting()
    shakes = threading.Thread(target=lambda: ends.append(TlsConnection(here, accepting)))
    shakes.start()
    connecting = files(folder, "client").connecting()
    with TlsConnection(there, connecting, to_host="127.0.0.1") as one:
        shakes.join(LIMIT_S)
        with ends[0] as two:
            threads = [
                threading.Thread(target=target, args=arguments)
                for target, arguments in (
                    (one.sendall, (sent[0],)),
                    (two.sendall, (sent[1],)),
                    (read, (one, came[0])),
                    (read, (two, came[1])),
                )
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(LIMIT_S)

    assert came == [sent[1], sent[0]]


def test_an_authority_that_does_not_vouch_for_the_dense_trainer_ends_it_at_once(folder, strangers):
    """The embedding trainer takes another authority's certificates: it says so, and sends nothing."""
    receiver = Receiver("127.0.0.1:0", tls=files(folder, "server"))

    with pytest.raises(
        GroupError, match=r"its certificate is not good here: certificate signature failure"
    ):
        Sender([receiver.address], Place(), tls=files(folder, "client", ca=strangers))

    receiver.close()


def test_a_certificate_of_another_authority_is_refused_by_the_dense_trainer(folder, strangers):
    """An embedding trainer's certificate that nobody here vouches for: both sides say so."""
    receiver = Receiver("127.0.0.1:0", tls=files(folder, "server"))

    with pytest.raises(GroupError, match=r"it refused this trainer's certificate.*ALERT"):
        Sender([receiver.address], Place(), tls=files(strangers, "client", ca=folder))

    assert has_refused(receiver, "certificate verify failed")
    receiver.close()


def test_who_speaks_no_tls_is_sent_away(folder):
    """An embedding trainer without TLS does not get in, and the dense trainer tells of it."""
    receiver = Receiver("127.0.0.1:0", tls=files(folder, "server"))

    with pytest.raises(PeerLostError, match=f"no dense trainer at {receiver.address}"):
        Sender([receiver.address], Place(), connect_s=0.5)

    assert has_refused(receiver, "")
    receiver.close()


def test_who_shows_no_certificate_is_sent_away(folder):
    """TLS without a certificate of one's own does not do."""
    receiver = Receiver("127.0.0.1:0", tls=files(folder, "server"))
    host, port = receiver.address.split(":")
    bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bare.load_verify_locations(folder / "ca.pem")

    with socket.create_connection((host, int(port)), LIMIT_S) as raw:
        end = TlsConnection(raw, bare, to_host=host)
        with pytest.raises(OSError, match="CERTIFICATE_REQUIRED"):
            end.recv_into(memoryview(bytearray(1)))

    assert has_refused(receiver, "peer did not return a certificate")
    receiver.close()


def test_another_host_than_the_certificates_is_refused(folder):
    """The name that was asked for must stand in the dense trainer's certificate."""
    receiver = Receiver("127.0.0.2:0", tls=files(folder, "server"))

    with pytest.raises(GroupError, match=r"not good here: .*127\.0\.0\.2"):
        Sender([receiver.address], Place(), tls=files(folder, "client"))

    receiver.close()


def test_a_dense_trainer_without_tls_is_not_spoken_to(folder):
    """TLS on this end only: the error says that the other needs it too."""
    receiver = Receiver("127.0.0.1:0")

    with pytest.raises(PeerLostError, match="with TLS here it must have TLS too"):
        Sender([receiver.address], Place(), connect_s=0.5, tls=files(folder, "client"))

    receiver.close()


def test_files_that_are_none_are_named(folder, tmp_path):
    """A missing file is an error before anything is opened."""
    with pytest.raises(GroupError, match=r"TLS takes PEM files .*gone\.pem"):
        Receiver("127.0.0.1:0", tls=TlsFiles(str(tmp_path / "gone.pem"), "k", "ca"))
