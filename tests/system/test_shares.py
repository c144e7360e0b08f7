"""Servers that hold unequal parts of the parameters."""
import os
import re
import subprocess
import sys
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

from jobs import BASICNET, BIN, PSRUN, ROOT, JobTest, Psrun, run_well
from psrunlib import cgroup, doctor, helpers, hosts, out, ports, remote
from psrunlib import job as jobs
from psrunlib.errors import JobError


class Shares(JobTest):
    def test_the_weights_are_the_same_bits(self):
        settings = ["-s", 3, "-w", 2, BASICNET, "train.steps=40", "server.shards=2", "train.threads=1",
                    "exchange.shm=off"]
        self.psrun(*settings, out="equal")
        self.psrun(*settings, "server.share=[5,1,0.5]", out="unequal")
        self.assertEqual(self.weights("equal"), self.weights("unequal"))

        def received(out):
            logs = [Path(self.path(out, "logs", f"server-{i}.log")).read_text() for i in range(3)]
            return [float(re.search(r"received=([0-9.]+)MB", log)[1]) for log in logs]

        even, uneven = received("equal"), received("unequal")
        self.assertLess(max(even), 1.5 * min(even))
        self.assertGreater(uneven[0], 3 * uneven[1])
        self.assertGreater(uneven[1], uneven[2])

    def test_another_number_of_shares_than_servers(self):
        printed = self.psrun("-s", 2, "-w", 1, BASICNET, "server.share=[1,2,3]", code=1)
        self.assertIn("server.share has 3 numbers, but there are 2 servers", printed)


class Doctor(unittest.TestCase):
    def advice(self, probes, link=0, servers=3):
        """probes: {(from, to): Mbit/s} among the hosts a, b and c."""
        placed = [hosts.Host(name, name, name, link=link) for name in "abc"]
        nodes = [SimpleNamespace(name=h.name, probes={to: {"mbit_s": rate} for (at, to), rate in
                                                      probes.items() if at == h.name}) for h in placed]
        return doctor.link_advice(SimpleNamespace(hosts=placed, server_hosts=placed[:servers]), nodes)

    # b has the slow link. A host reaches itself through memory, which is fast.
    SLOW_B = {("a", "a"): 40000, ("a", "b"): 101, ("b", "a"): 99, ("a", "c"): 940, ("c", "b"): 100}

    def test_unequal_links_are_named(self):
        words = " ".join(self.advice(self.SLOW_B)[1:]).split()
        self.assertEqual(words, ["a", "link=940", "b", "link=101", "c", "link=940"])

    def test_nothing_is_said_where_it_would_change_nothing(self):
        self.assertEqual(self.advice({(x, y): 940 for x in "abc" for y in "abc"}), [])
        self.assertEqual(self.advice(self.SLOW_B, link=5), [])
        self.assertEqual(self.advice(self.SLOW_B, servers=1), [])
        self.assertEqual(self.advice({("a", "b"): 100}), [])  # c was not measured


class Hosts(JobTest):
    """Of hostfiles as people have them."""

    def read(self, text):
        path = Path(self.path("hosts"))
        path.write_bytes(text.encode())
        return hosts.read_hostfile(path)

    def test_two_doors_of_one_machine(self):
        for text in ("gateway:2201\ngateway:2202\n", "ann@gateway\nben@gateway\n"):
            placed = self.read(text)
            self.assertEqual(hosts.local_ranks(placed), ([0, 1], [2, 2]))
            job = jobs.Job("", [], "", "ps", 0, 2, "")
            job.spread([], placed)
            self.assertEqual(len(job.hosts), 2)
        self.assertEqual([remote.ssh_argv(h, "")[-5:-2] for h in self.read("a@g:22 addr=n1\nb@g:23 addr=n2\n")],
                         [["-p", "22", "a@g"], ["-p", "23", "b@g"]])
        self.assertEqual(hosts.local_ranks(self.read("g:22 addr=n1\ng:23 addr=n2\n")), ([0, 0], [1, 1]))

    def test_bytes_and_addresses(self):
        self.assertEqual(self.read("\ufeffnode1 slots=1\n")[0].host, "node1")
        zoned = self.read("me@[fe80::1%eth0]:22\n")[0]
        self.assertEqual((zoned.login, zoned.address, zoned.port), ("me@fe80::1%eth0", "fe80::1%eth0", 22))
        for line, says in (("a slots=\u00b2", "hosts:1: slots=\u00b2 is not a number"),
                           ("a:70000", "hosts:1: 70000 is not a port"), ("a\na", "a is there twice")):
            with self.assertRaisesRegex(JobError, says):
                self.read(line + "\n")


class Cores(JobTest):
    def put(self, name, text):
        """Writes a file of a cgroup."""
        path = Path(self.path(name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def test_a_quota_counts(self):
        """As kernel.org's cgroup-v2.rst (cpu.max) and sched-bwc.rst (cfs_quota_us) have the files."""
        for name, text in (("batch/cpu.max", "50000 100000"), ("batch/job/cpu.max", "max 100000"),
                           ("cpu/docker/cpu.cfs_quota_us", "100000\n"), ("cpu/docker/cpu.cfs_period_us", "50000\n")):
            self.put(name, text)
        found = []
        with mock.patch("os.sched_getaffinity", lambda _: range(64)):
            for mine in ("0::/", "0::/batch/job", "4:cpu,cpuacct:/docker/x\n0::/", "4:cpuset:/docker\n0::/other"):
                Path(self.path("cgroup")).write_text(mine + "\n")
                found.append(cgroup.cores(self.path("cgroup"), self.folder))
        self.assertEqual(found, [64, 1, 2, 64])

    def test_who_was_killed_for_memory(self):
        """As cgroup-v2.rst has memory.events, memory.rst memory.oom_control, and vmstat.c /proc/vmstat."""
        for name, text in (("batch/memory.events", "oom 5\noom_kill 3\noom_group_kill 0\n"), ("vmstat", "pgfault 9\noom_kill 7\n"),
                           ("memory/old/memory.oom_control", "under_oom 0\noom_kill 4\n"), ("none/memory.events", "oom 1\n")):
            self.put(name, text)
        found = []
        for mine in ("0::/batch", "9:pids:/x\n4:memory:/old\n0::/", "0::/none", "0::/", ""):
            where = self.file("cgroup", mine + "\n" * bool(mine)), self.folder, self.path("vmstat")
            found.append((cgroup.killed_for_memory(*where), run_well(["sh", "-c", f"{cgroup.in_sh(*where)}killed_for_memory"])))
        self.assertEqual(found, [(n, f"{n}\n") for n in (3, 4, 7, 7, 7)])


class Ports(JobTest):
    def test_of_two_processes_differ(self):
        Path(self.path("range")).write_text(f"{ports.LEAST + 2} 60999", encoding="ascii")
        draw = ("import sys; sys.path.insert(0, sys.argv[1]); from psrunlib import ports; ports.RANGE = sys.argv[2];"
                "print(ports.free_port(), flush=True); sys.stdin.read()")
        drawn = []
        for _ in range(3):  # while the ones before live
            process = subprocess.Popen([sys.executable, "-c", draw, str(ROOT / "deploy"), self.path("range")], text=True,
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self.addCleanup(process.communicate)
            drawn.append(int(process.stdout.readline()))
        self.assertEqual(len(set(drawn)), 3)
        self.assertGreater(drawn[2], ports.LEAST + 1)  # no more than two are outside the system's range


class Helpers(JobTest):
    def test_one_that_is_killed_is_run_again(self):
        script = f"echo >>{self.path('runs')}; [ $(wc -l <{self.path('runs')}) = 3 ] || kill -KILL $$; echo yes"
        done = helpers.run(["sh", "-c", script], stdout=subprocess.PIPE, text=True)
        self.assertEqual((done.returncode, done.stdout), (0, "yes\n"))

    def test_one_that_is_run_again_has_its_own_words_alone_in_the_file(self):
        script = f"echo >>{self.path('runs')}; echo no; [ $(wc -l <{self.path('runs')}) = 2 ] || kill -KILL $$; echo yes"
        self.assertEqual(helpers.run(["sh", "-c", script], to=self.path("said")).returncode, 0)
        self.assertEqual(Path(self.path("said")).read_text(encoding="ascii"), "no\nyes\n")

    def test_what_is_no_text(self):
        done = helpers.run(["printf", r"caf\351"], stdout=subprocess.PIPE, text=True)
        self.assertEqual(done.stdout, "caf\ufffd")

    def test_which_results_are_the_jobs(self):
        """Whatever a clock says meanwhile."""
        old, same = self.file("summary.json", "1"), self.file("model.safetensors", "1")
        before = out.Before(self.folder)
        self.file("new", "2")
        os.replace(self.path("new"), old)
        new = self.file("new", "3")
        for path in (old, new):
            os.utime(path, (0, 0))
        self.assertEqual([before.is_new(path) for path in (old, new, same, self.path("none"))], [True, True, False, False])

    def far(self, script='for command; do :; done\nexec sh -c "$command"\n'):
        """A host whose ssh is a script; its folder is on this one."""
        os.makedirs(self.path("far"), exist_ok=True)
        environment = mock.patch.dict(os.environ, PS_SSH=f"sh {self.file('ssh', script)}")
        environment.start()
        self.addCleanup(environment.stop)
        return hosts.Host("far", "far", "far", dir=self.path("far"))

    def test_files_come_from_a_host(self):
        host, content = self.far(), bytes(range(256)) * 4096
        Path(self.path("far/one")).write_bytes(content)
        before = out.Before(self.folder)
        self.assertTrue(remote.fetch(host, "one", self.path("one"), before))
        self.assertEqual(Path(self.path("one")).read_bytes(), content)
        self.assertFalse(remote.fetch(host, "none", self.path("none"), before))
        os.makedirs(self.path("far/folder/two"))
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(self.folder)
        with self.assertRaisesRegex(JobError, "cannot read folder/two on host far"):
            remote.fetch_all([host], "folder", before)
        self.assertEqual(sorted(os.listdir(self.folder)), ["far", "folder", "one", "ssh"])
        self.assertEqual(os.listdir(self.path("folder")), [])

    def test_a_host_that_does_not_answer(self):
        """Its disk hangs, with a file that it has begun to send."""
        host, old = self.far("echo half\nexec sleep 1000\n"), self.file("one", "old")
        with mock.patch.multiple(remote, ANSWERS_WITHIN_S=0.2, FETCHED_WITHIN_S=0.2):
            with self.assertRaisesRegex(JobError, "files on host far: it is not reached, or does not answer within 0.2 s"):
                remote.stat(host, ".", ["*"])
            remote.remove(host, ".", "*")
            self.assertFalse(remote.fetch(host, "one", old, out.Before(self.folder)))
        self.assertEqual(Path(old).read_text(encoding="ascii"), "old")
        self.assertEqual(sorted(os.listdir(self.folder)), ["far", "one", "ssh"])

    def test_files_of_a_folder_with_any_name(self):
        folder = self.path("two\nlines *")
        os.makedirs(os.path.join(folder, "step-2"))
        self.assertEqual([name for _, name in remote.stat(None, folder, ["step-*"])], ["step-2"])
        self.assertEqual(remote.stat(None, folder, ["step", "*tep-2"]), [])
        self.assertEqual(remote.stat(None, self.path("none"), ["*"]), [])


class Hostfile(JobTest):
    def test_a_name_that_ssh_would_take_for_an_option(self):
        self.assertIn("'-v' is not a host", self.dry_run(["-v servers=1"], 1, code=1)[0])

    def dry_run(self, hosts, servers, *settings, workers=4, code=0):
        path = Path(self.path("hosts"))
        path.write_text("\n".join(hosts) + "\n", encoding="utf-8")
        done = Psrun.run(
            [PSRUN, "--build-dir", BIN.parent, "--dry-run", "--insecure", "-H", path, "-s", str(servers),
             "-w", str(workers), BASICNET, *settings])
        self.assertEqual(done.returncode, code, done.stdout)
        found = set(re.findall(r"server\.share=\[([0-9.,]*)\]", done.stdout))
        self.assertLessEqual(len(found), 1, "all parts must have the same shares")
        return done.stdout, [float(w) for f in found for w in f.split(",")]

    ALONE = [f"s{i} servers=1 workers=0" for i in range(4)]
    BOTH = [f"w{i} servers=1 workers=1" for i in range(8)]

    def test_links_are_busy_equally_long(self):
        """The parts of BytePS: 2 (n - 1) / (n² + kn - 2k) and (n - k) / (n² + kn - 2k)."""
        for n, k in ((4, 2), (8, 4), (4, 1)):
            _, shares = self.dry_run(self.ALONE[:k] + self.BOTH[:n], n + k, workers=n)
            all_of_them = n * n + k * n - 2 * k
            expected = [2 * (n - 1) / all_of_them] * k + [(n - k) / all_of_them] * n
            for found, wanted in zip(shares, expected, strict=True):
                self.assertAlmostEqual(found, wanted, 3)

    def test_a_faster_link_carries_more(self):
        hosts = [self.ALONE[0] + " link=25", *self.ALONE[1:], *[f"w{i} servers=0" for i in range(4)]]
        _, shares = self.dry_run([h if "link" in h else h + " link=10" for h in hosts], 4)
        self.assertAlmostEqual(shares[0] / shares[1], 2.5, 2)
        self.assertAlmostEqual(sum(shares), 1, 3)

    def test_where_it_makes_no_difference_nothing_is_said(self):
        self.assertEqual(self.dry_run(self.BOTH[:4], 4)[1], [])
        self.assertEqual(self.dry_run(self.ALONE[:1] + self.BOTH[:2], 3, workers=2)[1], [])

    def test_what_the_user_says_counts(self):
        hosts = self.ALONE[:2] + self.BOTH[:4]
        self.assertEqual(self.dry_run(hosts, 6, "server.share=[1,1,1,1,1,1]")[1], [1] * 6)
        shared = [f"{h} share={3 if 'workers=0' in h else 0.5}" for h in hosts]
        self.assertEqual(self.dry_run(shared, 6)[1], [3, 3, 0.5, 0.5, 0.5, 0.5])

    def test_all_reduce_has_no_servers(self):
        done = subprocess.run([PSRUN, "--build-dir", BIN.parent, "--dry-run", "-m", "allreduce", "-s", "2", BASICNET],
                              stderr=subprocess.PIPE, text=True)
        self.assertEqual((done.returncode, done.stderr),
                         (1, "psrun: -s 2: mode allreduce has no servers: leave -s out, or give -m ps\n"))

    def test_mistakes_are_named(self):
        for word, says in (("share=0", "share=0 is not a number above 0"),
                           ("link=-1", "link=-1 is not a number above 0"),
                           ("link=1e9", "link=1e9 is not a number above 0"),
                           ("share=2", "share= for s0, but not for w0")):
            hosts = [f"{self.ALONE[0]} {word}", *self.BOTH[:4]]
            self.assertIn(says, self.dry_run(hosts, 5, code=1)[0])


if __name__ == "__main__":
    unittest.main()
