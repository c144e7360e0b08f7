"""The data of docs/tutorial.md, in three folders here: a table, pictures, signals. Python alone is enough."""
import math
import os
import random
import struct
import zlib

draw = random.Random(1)


def write(path, content):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(content)


# ---- table/: points, of class 1 within a circle ----

def point():
    x, y = draw.uniform(-1, 1), draw.uniform(-1, 1)
    return f"{x:.3f},{y:.3f}", int(x * x + y * y < 0.6)


for name, n in (("train", 1000), ("test", 200), ("new", 100)):
    points = [point() for _ in range(n)]
    if name == "new":  # without classes, which are in a file of their own
        write("table/answers.csv", "".join(["answer\n", *(f"{c}\n" for _, c in points)]).encode())
        write("table/new.csv", "".join(["x,y\n", *(f"{xy}\n" for xy, _ in points)]).encode())
    else:
        write(f"table/{name}.csv", "".join(["x,y,class\n", *(f"{xy},{c}\n" for xy, c in points)]).encode())


# ---- pictures/: drawings of 16 x 16 gray pixels ----

SHAPES = {"cross": lambda x, y, r: min(abs(x), abs(y)) <= 1 and max(abs(x), abs(y)) <= r,
          "disc": lambda x, y, r: x * x + y * y <= r * r,
          "frame": lambda x, y, r: max(abs(x), abs(y)) in (r, r - 1)}


def png(rows):
    """Of rows of gray pixels."""
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    head = struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 0, 0, 0, 0)
    body = zlib.compress(b"".join(b"\0" + bytes(row) for row in rows))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def drawing(shape):
    r, x0, y0 = draw.randint(4, 5), draw.randint(5, 10), draw.randint(5, 10)
    return png([[(200 if SHAPES[shape](x - x0, y - y0, r) else 30) + draw.randint(-30, 30) for x in range(16)]
                for y in range(16)])


for shape in SHAPES:
    for split, n in (("train", 100), ("test", 20)):
        for i in range(n):
            write(f"pictures/{split}/{shape}/{i}.png", drawing(shape))
    for i in range(10):
        write(f"pictures/new/{shape}-{i}.png", drawing(shape))


# ---- signals/: waves of 64 numbers, with noise, as numpy.save writes them ----

WAVES = (math.sin, lambda t: math.copysign(1, math.sin(t)), lambda t: t / math.pi % 2 - 1)


def npy(kind, shape, body):
    head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + body


for name, n in (("train", 600), ("test", 150), ("new", 90)):
    values = []
    for i in range(n):
        phase, period = draw.uniform(0, 6), draw.uniform(12, 30)
        values += [WAVES[i % 3](phase + 2 * math.pi * k / period) + draw.gauss(0, 0.2) for k in range(64)]
    write(f"signals/{name}_x.npy", npy("<f4", (n, 1, 64), struct.pack(f"<{n * 64}f", *values)))
    write(f"signals/{name}_y.npy", npy("|u1", (n,), bytes(i % 3 for i in range(n))))
