"""The rate of TCP between two processes of this machine."""
import socket
import statistics
import threading
import time


def _send(port, total, block):
    with socket.create_connection(("127.0.0.1", port)) as s:
        for _ in range(total // len(block)):
            s.sendall(block)


def loopback_bytes_per_second(total=256 << 20, rounds=3):
    """The median of a few transfers in one direction, in writes of 1 MiB."""
    rates = []
    for _ in range(rounds):
        with socket.create_server(("127.0.0.1", 0)) as server:
            sender = threading.Thread(
                target=_send, args=(server.getsockname()[1], total, bytes(1 << 20)))
            sender.start()
            peer, _ = server.accept()
            view, got, begun = memoryview(bytearray(1 << 20)), 0, time.perf_counter()
            with peer:
                while got < total:
                    n = peer.recv_into(view)
                    if n == 0:
                        break
                    got += n
            rates.append(got / (time.perf_counter() - begun))
            sender.join()
    return statistics.median(rates)
