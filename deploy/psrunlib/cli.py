"""The command line of psrun. What only some commands need is imported by them: a job starts the sooner."""
import argparse
import contextlib
import os
import re
import shlex
import shutil
import signal
import sys

from . import hosts as hostfile
from . import job as jobs
from . import attempts, elastic, helpers, jobfile, keys, local, places, ports, remote, report, restarts, shares
from .errors import JobError
from .out import TRACE, Before, Out
from .screen import Screen, tell, to_nowhere
from .supervise import END_SIGNALS, RESUMABLE, Supervisor, listens_to

EPILOG = """\
A key is a path of the configuration (ps-worker --help lists them all):
  deploy/psrun -s 2 -w 2 configs/digits-basicnet.yaml train.epochs=10 optimizer.lr=3e-4

Workers may be any program that uses the Python package pstrain, or libpstrain. Each gets
torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT):
  deploy/psrun -s 2 -w 4 -- python3 train.py --epochs 3

Without -s, -w or -m the configuration decides (job.servers, job.workers, exchange.name).
Exit codes: 0: the job finished. 130 after Ctrl-C, 143 after SIGTERM, sent to psrun or to a
part: the job ended in order and the weights are kept (a second signal ends all at once).
75: as 143, and there is a checkpoint to go on from (checkpoint.*): start the job again with
--resume. 1: a part failed, or the job could not start.
"""


def parser():
    p = argparse.ArgumentParser(
        prog="psrun", description="Starts a training job: servers and workers.",
        usage="psrun [options] CONFIG [key=value ...]\n"
              "       psrun [options] [key=value ...] -- PROGRAM [ARGUMENT ...]\n"
              "       psrun --predict WHAT RUN",
        epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_job(p.add_argument_group("the job"))
    add_runs(p.add_argument_group("its folder, and going on"))
    add_network(p.add_argument_group("the network"))
    add_instead(p.add_argument_group("instead of starting a job"))
    add_output(p.add_argument_group("output"))
    p.add_argument("config", metavar="CONFIG", nargs="?",
                   help="the job's file, such as configs/digits-basicnet.yaml; or the folder of a run that has finished")
    p.add_argument("overrides", metavar="key=value", nargs="*", help="keys that override those of the file")
    return p


def add_job(p):
    p.add_argument("-s", "--servers", type=int, metavar="SERVERS",
                   help="number of server processes (in ps mode); with a program of your own 0, too: without servers")
    p.add_argument("-w", "--workers", metavar="WORKERS",
                   help="number of worker processes, or auto: one per GPU that CUDA_VISIBLE_DEVICES names; without it "
                        "one per core")
    p.add_argument("-m", "--mode", choices=sorted(jobs.MODES),
                   help="ps: parameter servers; allreduce: Gloo or NCCL; single: one worker, no exchange")
    p.add_argument("-H", "--hostfile", type=named, metavar="HOSTFILE",
                   help="run over ssh on the hosts of this file, one per line: node1 servers=1 workers=2; "
                        "also slots= dir= bin= addr= image= link= share=, or node9 spare (docs/machines.md)")
    p.add_argument("--mps", action="store_true",
                   help="let workers that share a GPU run on it together: by NVIDIA's MPS, whose daemon "
                        "(nvidia-cuda-mps-control) runs as long as the job")
    p.add_argument("--init", type=named, metavar="FILE",
                   help="begin with the weights of this safetensors file (train.init)")
    p.add_argument("--build-dir", metavar="DIR",
                   help="folder of the programs (default: PS_BUILD_DIR, else build/release)")


def add_runs(p):
    p.add_argument("--out", type=named, metavar="DIR", help="folder for results and logs (default: runs/<job>-<time>)")
    p.add_argument("--overwrite", action="store_true",
                   help="replace the run that --out holds already; other files stay")
    p.add_argument("--resume", type=named, metavar="RUN",
                   help="continue the run in that folder from its newest checkpoint (checkpoint.*); "
                        "auto: continue the run in --out, or begin one there")
    p.add_argument("--restarts", type=count, default=0, metavar="N",
                   help="start a part again when it dies, at most N times (default: 0); the job goes on from its "
                        "newest checkpoint (checkpoint.every, .minutes or .best; without any: every five minutes). With a program of your own: "
                        "all parts are started again, and the program goes on from its last commit (pstrain.State), or loads "
                        "what it has saved")
    p.add_argument("--join", type=named, metavar="RUN",
                   help="add one worker to the job that is running in that folder "
                        "(its job.workers must be a range); Ctrl-C makes the worker leave")
    p.add_argument("--replay-membership", type=named, metavar="LOG",
                   help="repeat a run whose number of workers changed, bit for bit; LOG is its membership.jsonl")
    p.add_argument("--replay", type=named, metavar="LOG",
                   help="repeat a run whose workers went on at their own pace (sync.policy backup, ssp, asp, or local "
                        "with sync.quorum), bit for bit; LOG is its policy.log")


def add_network(p):
    p.add_argument("--port", type=port, default=0, metavar="PORT",
                   help="port of the coordinator, after restarts too (default: a free one; with -H 29500)")
    p.add_argument("--curve", type=named, metavar="DIR",
                   help="encrypt all connections, with the job's keys in that folder; they are made if "
                        "there are none (SECURITY.md)")
    p.add_argument("--insecure", action="store_true",
                   help="allow connections to other hosts that are not encrypted: without --curve, or in "
                        "all-reduce mode")


def add_instead(group):
    group.add_argument("--dry-run", action="store_true", help="print the commands")
    p = group.add_mutually_exclusive_group()
    p.add_argument("--doctor", action="store_true",
                   help="check hosts, ports, rates, versions, data and GPUs")
    p.add_argument("--verify", action="store_true",
                   help="run a few steps in ps and in all-reduce mode, and compare the weights")
    p.add_argument("--find-lr", action="store_true",
                   help="run some steps with a growing learning rate; print the losses as a table, draw them as "
                        "find-lr.svg, and suggest a rate (optimizer.lr: the first one; train.steps: how many)")
    p.add_argument("--top", type=named, metavar="ADDRESS",
                   help="watch a running job in the terminal: the address or port of its page (metrics.port), or "
                        "the folder of a run on this host")
    p.add_argument("--predict", type=named, metavar="WHAT",
                   help="apply the model of a run's folder (or of a configuration, with the weights of --init) to the "
                        "samples of an npy file, a table, a picture, a folder of pictures, standard input (-), or the "
                        "test set (test); writes predictions.csv and predictions.npy into --out; over all cores, or "
                        "over the workers of -w and -H")
    p.add_argument("--serve", type=port, metavar="PORT",
                   help="answer requests for predictions on this port of this host, over HTTP with JSON, to try a "
                        "model (docs/results.md)")
    p.add_argument("--check-data", action="store_true",
                   help="read the data, as far as a few seconds allow; print samples, shapes, ranges, classes, what is "
                        "left out, and the steps of an epoch for these workers")
    p.add_argument("--convert", type=named, metavar="FILE",
                   help="make a .csv file of a table in Parquet, Excel or what else pandas reads, beside it or as --out")
    p.add_argument("--describe", action="store_true",
                   help="print the model as a table of layers: shapes, parameters, memory and operations")
    p.add_argument("--export-torch", action="store_true", help="print the model as PyTorch source")
    p.add_argument("--version", action="version", version=f"psrun {places.version()}", help="print the version")


def add_output(p):
    p.add_argument("--verbose", action="store_true",
                   help="show the logs of all parts; otherwise worker 0's, and warnings and errors of the others")
    p.add_argument("--tensorboard", action="store_true",
                   help="write events for TensorBoard into the run's folder (tensorboard --logdir runs)")


def port(text):
    if not re.fullmatch("[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"'{text}' is not a port (1 .. 65535)")
    return int(text)


def named(text):
    """Of a file or a folder. Without this, --predict "$UNSET" would train."""
    if not text:
        raise argparse.ArgumentTypeError("the name is empty")
    return text


def count(text):
    if not re.fullmatch("[0-9]{1,6}", text):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number from 0")
    return int(text)


def plan_job(args):
    name = args.config or ""
    if name.endswith(".py") or name and not os.path.exists(name) and shutil.which(name):
        raise JobError(f"{name} is no configuration; if it is a program of your own, -- stands before it: "
                       f"psrun -s 2 -w 2 -- {'python ' * name.endswith('.py')}{name}")
    return make_job(args, jobs.find_build_dir(args.build_dir))


def make_job(args, build_dir, name=None):
    """name: of the job; None: the configuration's."""
    for setting in args.overrides:
        if "=" not in setting:
            raise JobError(f"'{setting}' is not key=value")
    overrides = args.overrides + ["net.insecure=true"] * args.insecure + ["train.tensorboard=true"] * args.tensorboard
    folder = keys.take_folder(args, overrides)
    facts = jobs.describe(build_dir, args.config, overrides + numbers(args) + exchange_asked(args))
    overrides += jobs.input_of_data(build_dir, args.config, overrides + numbers(args), facts)
    folder = folder or facts["net.curve"]
    mode = args.mode or jobs.mode_of(facts["exchange.name"])
    workers, fewest = jobs.count_workers(facts)
    workers = 1 if mode == "single" and args.workers is None else workers
    if mode == "single" and workers > 1:
        raise JobError(f"mode single has one worker, not {workers}")
    servers = facts["job.servers"]
    if mode != "ps":
        if args.servers:
            raise JobError(f"-s {args.servers}: mode {mode} has no servers: leave -s out, or give -m ps")
        servers = 0
    elif servers < 1:
        raise JobError(f"mode ps needs at least one server, not {servers}")
    if args.resume and args.resume != "auto" and not args.out:
        args.out = args.resume
    job = jobs.Job(
        config=args.config, overrides=overrides, build_dir=build_dir, mode=mode, curve=folder,
        servers=servers, workers=workers, fewest=fewest,
        out=args.out or jobs.default_out(name or facts["job.name"]),
        out_is_ours=not args.out, overwrite=args.overwrite, facts=facts,
        resume=args.resume or "", restarts=args.restarts, mps=args.mps,
        master_port=args.port or ports.free_port(), port_is_given=bool(args.port))
    if args.config:  # now that the exchange and the model's input are known
        shards = jobs.check(build_dir, args.config, job.settings() + numbers(args))
        if not args.hostfile and not job.elastic:  # a newcomer that psrun does not start would not know it
            job.shards = shards
    if args.hostfile:
        job.master_port = args.port or jobs.DEFAULT_PORT
        hosts = hostfile.read_hostfile(args.hostfile)
        job.spread(*hostfile.place(hosts, servers, workers))
        job.spares = [h for h in hosts if h.spare and job.restarts]
        keys.check_hosts(job.hosts, folder, facts["net.insecure"])
        shares.add_to(job)
    if job.mps:
        from . import mps
        mps.check(facts, job.hosts)
    if folder:
        keys.make(folder, places.program(build_dir, "ps-server"))
    if args.config and (job.restarts or job.resume == "auto"):
        restarts.choose_checkpoints(job)
    return job


# Programs may import large libraries before they join. A worker that ends meanwhile ends the job at once, so the others
# can wait for long; the user's own setting stands behind this one, and counts.
IMPORTS_WITHIN = "net.join_timeout_ms=900000"
# One that was told to end has that long. Our own parts have the deadlines of what they may still wait for.
PROGRAM_ENDS_S = 30.0

# Options that need a configuration, and why.
OF_OUR_WORKERS = {
    "resume": "the program itself loads what it has saved",
    "init": "the program itself loads its weights",
    "join": "it adds one of our own workers",
    "replay_membership": "it repeats a run of our own workers",
    "replay": "it repeats a run of our own workers",
    "verify": "it compares the modes of our own workers",
    "find_lr": "it sets the learning rate of our own workers",
    "doctor": "it checks the jobs of our own workers",
    "tensorboard": "the program itself writes its records",
}


def check_program(args):
    for option, why in OF_OUR_WORKERS.items():
        if getattr(args, option):
            raise JobError(f"--{option.replace('_', '-')} is not for a program of your own: {why}")


def plan_program(args, program):
    """The job whose workers are a program of the user's."""
    if not program:
        raise JobError("-- ends the line: name the program that the workers run")
    if args.config:
        raise JobError(f"{args.config} and {program[0]}: a job has a configuration or a program of "
                       "its own; the program's settings are key=value before --")
    if args.mode not in (None, "ps"):
        raise JobError(f"-m {args.mode} is for our own workers; a program of your own that needs no servers has -s 0")
    if program[0].endswith(".py") and not args.hostfile and not shutil.which(program[0]):
        raise JobError(f"{program[0]} is a Python file, and no program that can be run by itself; Python starts it: "
                       f"-- python {shlex.join(program)}")
    args.overrides = [IMPORTS_WITHIN, *args.overrides]
    args.config = ""
    args.servers = 1 if args.servers is None else args.servers
    if args.mode and not args.servers:
        raise JobError("-m ps and no server contradict each other: a program without servers has -s 0 alone")
    args.mode = args.mode or ("ps" if args.servers else "allreduce")
    job = make_job(args, jobs.find_build_dir(args.build_dir, "ps-server"), name_of(program))
    if job.spares:
        tell(f"psrun: {args.hostfile}: a spare host takes the place of no host of a program of your own: psrun waits for "
             "one that is lost", sys.stderr)
        job.spares = []
    job.takers = jobs.takers(job.build_dir, job.overrides)
    job.program = program
    job.store_port = ports.beside(job.master_port) if args.hostfile else ports.free_port()
    return job


def name_of(program):
    """Of the folder of results: the script's name, where an interpreter runs one."""
    scripts = [word for word in program if word.endswith(".py")]
    return os.path.basename((scripts or program)[0]).removesuffix(".py")


def is_setting(word):
    """Not a file whose name has a =."""
    return bool(re.match(r"[\w.]+=", word)) and not os.path.exists(word)


def take_config(args):
    """The configuration may stand behind settings."""
    if not args.config or not is_setting(args.config):
        return
    words = [args.config, *args.overrides]
    at = next((i for i, word in enumerate(words) if not is_setting(word)), None)
    args.config = None if at is None else words.pop(at)
    args.overrides = words


def take_numbers(args):
    """job.servers= and job.workers= are -s and -w: the parts get both in their environment, which a setting would
    override. A range of workers stays a setting; -w then says with how many the job begins."""
    if what_one_worker_does(args):
        return
    for key, option in (("job.servers", "servers"), ("job.workers", "workers")):
        settings = [s for s in args.overrides if re.fullmatch(rf"{re.escape(key)}=[0-9]+", s)]
        if not settings:
            continue
        number, given = int(settings[-1].split("=")[1]), getattr(args, option)
        if given is not None and str(given) != str(number):
            raise JobError(f"-{option[0]} {given} and {settings[-1]} contradict each other: give one of them")
        args.overrides = [s for s in args.overrides if s not in settings]
        setattr(args, option, number if option == "servers" else str(number))


def numbers(args):
    """Returns -s and -w as settings. The programs check them with the rest."""
    settings = []
    if args.servers is not None and args.mode in (None, "ps"):
        settings.append(f"job.servers={args.servers}")
    workers = workers_asked(args) or (1 if args.mode == "single" else None)
    return settings + [f"job.workers={workers}"] * (workers is not None)


def exchange_asked(args):
    """Returns -m as a setting. With -m allreduce the configuration may name an engine: see Job.exchange."""
    return [f"exchange.name={jobs.MODES[args.mode]}"] if args.mode in ("ps", "single") else []


def workers_asked(args):
    """By -w; None: it is not given."""
    if args.workers in (None, "auto"):
        return jobs.count_devices() if args.workers else None
    if not re.fullmatch("[1-9][0-9]*", args.workers):
        raise JobError(f"-w {args.workers}: give a number from 1, or auto")
    return int(args.workers)


def launcher(env):
    def launch(part):
        if part.host is None:
            return local.LocalProcess(part, env)
        return remote.RemoteProcess(part, part.host, env)
    return launch


def show(parts):
    for part in parts:
        print(remote.command_line(part, part.host) if part.host else local.command_line(part))
    return 0


def run(job, verbose, summary=True):
    """summary: show evaluations, and print the summary at the end."""
    if job.hosts:
        programs = job.programs_by_host()
        names = {os.path.basename(p) for paths in programs.values() for p in paths}
        remote.check_hosts(job.hosts + job.spares, programs, job.config, jobs.versions(job.build_dir, names))
    screen = Screen(verbose=verbose)
    screen.evaluations = summary
    env = {}
    if screen.terminal:
        env = {"PS_PROGRESS": "bar", "COLUMNS": str(screen.columns())}
    with Out(job.out, job.out_is_ours, job.overwrite, bool(job.resume), job.goes_on_in_place) as out:
        job.out = out.path
        with contextlib.nullcontext() if job.hosts else jobfile.remembered(job):
            if not job.mps:
                return supervise(job, screen, env, out, summary)
            from . import mps
            with mps.Daemon(os.path.join(out.logs, "mps")) as daemon:
                return supervise(job, screen, {**env, **daemon.environment}, out, summary)


def after_death(job):
    """What to do about a part that a signal has ended."""
    if job.facts["exchange.levels"] == 2:  # which refuses --restarts
        return "with checkpoint.every=N, --resume goes on from the last checkpoint"
    return "with --restarts 3 it is started again"


def supervise(job, screen, env, out, summary=True):
    before = Before(job.out, os.path.join(job.out, TRACE))
    if job.program:
        job.has_stepped = True  # of a program nobody knows
        return end_of_program(job, screen, *run_program(job, screen, env, out.logs))
    again = restarts.Restarts(job, screen) if job.restarts else None
    ends_s = (job.facts["train.file_timeout_ms"] + job.facts["net.step_timeout_ms"]) / 1000
    supervisor = Supervisor(screen, launcher(env), out.logs, dead_after_s(job), again,
                            elastic.Elastic(job.fewest) if job.elastic else None, ends_s)
    supervisor.when_killed = "" if again else after_death(job)
    supervisor.codes_tell = True
    supervisor.drops_logs = out.made and (out.fresh or out.resumes)
    code = supervisor.run(job.parts())
    job.has_stepped = code == 0 or any(w.step for w in supervisor.watched) or bool(again and again.deaths)
    out.drops_logs = supervisor.drops_logs and not supervisor.needs_logs
    if job.hosts and code != 1:
        host = job.parts()[job.servers].host
        for path in [os.path.join(job.out, name) for name in job.results]:
            if not remote.fetch(host, path, path, before) and code == 0:
                raise JobError(f"cannot read {path} on host {host.name}")
    add_events(job, supervisor, code, before)
    if job.facts.get("train.trace"):
        merge_traces(job, screen, before)
    if code == 0 and summary:
        report.show(job.out, screen)
    elif code != 0 and (supervisor.signal or code != 1):
        screen.say(f"psrun: {who_was_told(supervisor)}; {what_is_left(job, code, before)}")
    return code


def run_program(job, screen, env, logs):
    """Returns the supervisor of the last attempt, and its exit code."""
    def attempt(more, heard, keeps, adopted):
        one = Supervisor(screen, launcher({**env, **more}), logs, dead_after_s(job), ends_s=PROGRAM_ENDS_S, keeps=keeps,
                         adopted=adopted)
        one.ending = "the program ends in its own order, and keeps what it saves itself"
        one.heard = heard
        one.attempt = more["TORCHELASTIC_RESTART_COUNT"]  # for pstrain.launch
        again = one.attempt != "0"
        one.another = lambda failed: keeps and all(restarts.is_passing(w, again) for w in failed)
        one.when_killed = "" if job.restarts else "with --restarts 3 all parts are started again"
        return one, one.run(job.parts())
    return attempts.run(job, screen, attempt)


def dead_after_s(job):
    return job.facts["net.dead_after_ms"] / 1000


def add_events(job, supervisor, code, before):
    """Adds to the summary what has happened besides training."""
    again = supervisor.restarts
    if again:
        again.ended()
    if again and code == 1:
        again.say_in_vain()
    facts = supervisor.tally.facts(again)
    told = {"signal": supervisor.signal.name} if supervisor.signal and code != 0 else {}
    if code != 1 and (again or told or any(facts.values())):
        listed = {"restarts": [d.facts() for d in again.deaths]} if again else {}
        report.add_to_summary(job.out, {**listed, **told, "recovery": facts}, before)


def merge_traces(job, screen, before):
    """Makes trace.json of the parts' traces. The job is over: a fault is only said."""
    from . import trace
    try:
        if job.hosts:
            remote.fetch_all(job.hosts, os.path.join(job.out, TRACE), before)
        trace.write(trace.merge(trace.load(job.out)), os.path.join(job.out, "trace.json"))
    except JobError as error:
        screen.say(f"psrun: no trace.json: {error}")
    except OSError as error:
        screen.say(f"psrun: no trace.json: {error.filename or job.out}: {error.strerror}")


def end_of_program(job, screen, supervisor, code):
    if code == 0:
        screen.say(f"psrun: done; logs are in {job.out}")
    elif supervisor.signal or code != 1:
        screen.say(f"psrun: {who_was_told(supervisor)}; logs are in {job.out}")
    return code


def who_was_told(supervisor):
    told, number = supervisor.told_alone, supervisor.signal
    if told:
        return f"{told.name} was told to end ({number.name})"
    return f"told to end ({number.name})" if number not in (None, signal.SIGINT) else "interrupted"


def how_to_go_on(job):
    """job.json knows neither these options nor other hosts."""
    if job.hosts:
        return f"the same command with --resume {shlex.quote(job.out)}"
    return shlex.join(["psrun", *["--restarts", str(job.restarts)] * bool(job.restarts), *["--mps"] * job.mps, "--resume", job.out])


def what_is_left(job, code, before):
    """Says whether the weights were kept, after Ctrl-C or SIGTERM. If the folder is on another
    host, an end in order is taken as a yes."""
    path = os.path.join(job.out, "model.safetensors")
    again = f"{how_to_go_on(job)} goes on"
    if before.is_new(path) or job.hosts and code != 1 and not os.path.exists(path):
        return f"weights and results so far are in {job.out}" + f"; {again}" * (code == RESUMABLE)
    if code == RESUMABLE:
        return f"there is a checkpoint; {again} from it"
    if code != 1:
        return f"no weights were written; logs are in {job.out}"
    return f"the weights could not be kept; logs are in {job.out}"


def on_signal(number, frame):
    """Handles signals while no supervisor does. Later signals are ignored, so that nothing
    interrupts the end of psrun."""
    for n in END_SIGNALS:
        signal.signal(n, signal.SIG_IGN)
    raise KeyboardInterrupt(signal.Signals(number))


def hold_standard_streams():
    """Those that are closed go nowhere: a log or a pipe would get the number, and all that is printed."""
    while (fd := os.open(os.devnull, os.O_RDWR)) < 3:
        os.set_inheritable(fd, True)
    os.close(fd)
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)


def main(argv):
    hold_standard_streams()
    # Names and the bar are UTF-8, which not every terminal can show.
    sys.stdout.reconfigure(errors="replace")
    # Overrides may stand on either side of the options. SIGINT is still blocked (deploy/psrun):
    # where argparse is interrupted, it can raise another error instead.
    own, dashes, program = split_program(argv)
    args = parser().parse_intermixed_args(own)
    try:
        for n in filter(listens_to, END_SIGNALS):
            signal.signal(n, on_signal)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])
        code = run_command(args, dashes, program)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as told:  # before the supervisor's handlers are set, or after its work
        number = told.args[0] if told.args else signal.SIGINT
        what = "interrupted" if number == signal.SIGINT else f"told to end ({number.name})"
        left = "" if args.top or args.convert else "; no part of a job is running"
        print(f"psrun: {what}{left}", file=sys.stderr)
        return 128 + number
    except BrokenPipeError:  # its reader has ended: psrun --dry-run ... | head
        to_nowhere(sys.stdout)
        return 1
    except OSError as error:  # a folder that is gone, a full disk
        to_nowhere(sys.stdout)
        print(f"psrun: {error.filename or 'its output'}: {error.strerror}", file=sys.stderr)
        return 1
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done; Python takes a while to exit


def split_program(argv):
    """psrun's own arguments, whether there is a --, and the program after it."""
    at = argv.index("--") if "--" in argv else len(argv)
    return argv[:at], at < len(argv), argv[at + 1:]


def what_one_worker_does(args):
    """The words of its command line; empty: it is a job."""
    if args.predict:
        return ["--predict", args.predict]
    if args.serve:
        return ["--serve", str(args.serve)]
    return ["--check-data"] * args.check_data or ["--describe"] * args.describe or ["--export-torch"] * args.export_torch


def run_one_worker(args, words, dashes):
    """With all cores of this machine."""
    if dashes:
        raise JobError(f"{words[0]} is not for a program of your own: it is about our own models")
    if args.check_data and args.hostfile:
        raise JobError("--check-data reads the data on this machine; --doctor does so on every host of -H")
    settings = args.overrides
    if args.check_data:
        exchange = [f"exchange.name={jobs.MODES[args.mode]}"] if args.mode else []
        settings = settings + numbers(args) + exchange
    build_dir = jobs.find_build_dir(args.build_dir)
    jobs.describe(build_dir, args.config, settings)  # names a mistake
    argv = [places.program(build_dir, "ps-worker"), "--config", args.config, *words]
    argv += ["--out", args.out] * bool(args.out) + ["--overwrite"] * args.overwrite + jobs.set_words(settings)
    if args.dry_run:
        print(shlex.join(argv))
        return 0
    sys.stdout.flush()
    return helpers.run_in_place(argv, [n for n in END_SIGNALS if listens_to(n)])


# In the folder of a run, as in worker/results/run_config.h.
RUN_CONFIG, RUN_WEIGHTS = "config.json", "model.safetensors"


def take_run(args):
    """A run's folder in the place of a configuration: its model, and to predict its weights."""
    run = args.config
    if not os.path.isdir(run):
        return
    args.config = os.path.join(run, RUN_CONFIG)
    if not os.path.isfile(args.config):
        raise JobError(f"{run} is a folder without {RUN_CONFIG}, which a finished run of a configuration has: "
                       "name a configuration, or another run")
    if (args.predict or args.serve) and not args.init:
        args.init = os.path.join(run, RUN_WEIGHTS)


def predicts_over_workers(args):
    return args.predict and (args.hostfile or args.workers not in (None, "1"))


def plan_prediction(args):
    if args.predict == "-":
        raise JobError("--predict -: standard input goes to one process: leave out -w and -H")
    build_dir = jobs.find_build_dir(args.build_dir)
    facts = jobs.describe(build_dir, args.config, args.overrides)
    workers = workers_asked(args) or jobs.count_workers(facts)[0]
    job = jobs.Job(config=args.config, overrides=args.overrides, build_dir=build_dir, mode="single", servers=0,
                   workers=workers, out=args.out or jobs.default_out(facts["job.name"]),
                   overwrite=args.overwrite, facts=facts)
    if args.hostfile:
        job.spread(*hostfile.place(hostfile.read_hostfile(args.hostfile), 0, workers))
    return job


def check_alone(args):
    """--mps is a job's, and --dry-run a job's or of one that predicts."""
    for option, others, why in (
            ("mps", ("top", "convert", "join", "doctor", "predict", "serve", "check_data", "describe", "export_torch",
                     "dry_run"), "--mps is for a job that psrun starts: leave it out with"),
            ("dry_run", ("verify", "find_lr", "doctor", "top", "convert", "join", "replay_membership"),
             "--dry-run shows the commands of a job: give it without")):
        for other in [o for o in others if getattr(args, option) and getattr(args, o)]:
            raise JobError(f"{why} --{other.replace('_', '-')}")


# What options do beside which --resume would not be followed, or would change a run that has ended.
BEGIN_ANEW = {
    "join": "adds a worker to a job that is running",
    "find_lr": "runs a short job of its own",
    "verify": "compares two short jobs of its own",
    "replay": "repeats a run from its first step (from a checkpoint on: --resume RUN sync.replay=LOG)",
    "replay_membership": "repeats a run from its first step",
}


def check_resume(args):
    for option in (option for option in BEGIN_ANEW if getattr(args, option)):
        raise JobError(f"--resume goes on with a run, and --{option.replace('_', '-')} {BEGIN_ANEW[option]}: leave out one of them")
    if args.resume == "auto" and not args.out:
        raise JobError("--resume auto needs --out: name the folder of the run")
    if args.init and args.resume != "auto":
        raise JobError(f"--resume goes on with the weights of the checkpoint, so --init {args.init} would have no effect: "
                       "leave out one of them")


def take_job(args, dashes):
    """The configuration: the one that is named, or that of the run that goes on or is repeated; with what --init adds."""
    if args.replay:
        jobfile.recall_replayed(args)
    if args.resume and (args.predict or args.serve):
        raise JobError(f"--resume goes on with the training: name {args.resume} in the place of the configuration")
    if args.resume:
        jobfile.recall(args, args.out if args.resume == "auto" else args.resume)
    if not args.config and not dashes and (args.predict or args.serve):
        asked = f"--predict {args.predict}" if args.predict else f"--serve {args.serve}"
        raise JobError(f"no model is named: give the folder of a run, as in: psrun {asked} runs/mine")
    if not args.config and not dashes:
        raise JobError("no job is named: give a configuration, as in: deploy/psrun "
                       "configs/digits-basicnet.yaml (see --help)")
    if args.config:
        take_run(args)
    if args.init:
        args.overrides = args.overrides + [f"train.init={args.init}"]


def run_command(args, dashes, program):
    try:
        check_alone(args)
        if dashes:
            check_program(args)
        if args.top:
            if args.config or dashes:
                raise JobError("--top watches a job that is running: give nothing else")
            from . import top
            return top.top(args.top)
        if args.convert:
            if args.config or dashes:
                raise JobError("--convert makes a .csv file: give no configuration")
            from . import convert
            return convert.convert(args)
        take_config(args)
        take_numbers(args)
        if args.resume:
            check_resume(args)
        if args.join:
            return elastic.join(args, plan_job)
        if args.replay_membership:
            return elastic.replay(args, plan_job, run)
        take_job(args, dashes)
        if predicts_over_workers(args) and not dashes:
            job = plan_prediction(args)
            if args.dry_run:
                return show(job.predicting(args.predict))
            from . import predict
            return predict.predict(job, args, launcher({}))
        alone = what_one_worker_does(args)
        if alone:
            return run_one_worker(args, alone, dashes)
        if args.verify:
            from . import verify
            return verify.verify(args, plan_job, run)
        if args.find_lr:
            from . import find_lr
            return find_lr.find_lr(args, plan_job, run)
        job = plan_program(args, program) if dashes else plan_job(args)
        if args.doctor:
            from . import doctor
            return doctor.run(job)
        if args.dry_run:
            return show(job.parts())
        return run(job, args.verbose)
    except JobError as error:
        tell(f"psrun: {error}", sys.stderr)
        return 1
