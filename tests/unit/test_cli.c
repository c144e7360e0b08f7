/* The command line and the environment behind it. */
#include "cli.h"

#include "check.h"
#include "cpu_level.h"

static const ps_cli_program worker = {.name = "ps-worker",
                                      .about = "Trains.\n",
                                      .examples = "  ps-worker --config a.yaml\n"};
static const ps_cli_program server = {
    .name = "ps-server", .about = "Serves.\n", .examples = "  x\n", .is_server = true};

static int clear_environment(void **state)
{
    static const char *const names[] = {
        "RANK",        "WORLD_SIZE",  "LOCAL_RANK",
        "MASTER_ADDR", "MASTER_PORT", "PS_SERVER_RANK",
        "PS_SERVERS",  "PS_PORT",     "TORCHELASTIC_USE_AGENT_STORE"};
    for (int i = 0; i < 9; i++)
        unsetenv(names[i]);
    return 0;
}
#define CLEAN_TEST(f) TEST_WITH(f, clear_environment, NULL)

/* Parses up to 8 arguments. */
static ps_err parse(ps_cli *cli, const ps_cli_program *program, const char *const *args)
{
    char *argv[10] = {(char *)program->name};
    int argc = 1;
    for (; args && args[argc - 1]; argc++)
        argv[argc] = (char *)args[argc - 1];
    FILE *out = fopen("/dev/null", "w");
    assert_non_null(out);
    ps_err err = ps_cli_parse(cli, program, argc, argv, out);
    fclose(out);
    return err;
}
#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

CLEAN_TEST(nothing_given)
{
    ps_cli c;
    assert_ok(parse(&c, &worker, NULL));
    assert_int_equal(c.rank, -1);
    assert_int_equal(c.local_rank, -1);
    assert_string_equal(c.config, "");
    assert_string_equal(c.init_method, "tcp://127.0.0.1:29500");
    assert_int_equal(c.n_overrides, 0);
    assert_false(c.done);
    ps_cli_fini(&c);
}

/* OpenMP's variables say how threads wait; else the worker does (cpu_waits.h). */
CLEAN_TEST(openmp_says_how_threads_wait)
{
    static const char *const names[] = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"};
    for (int i = 0; i < 2; i++) {
        ps_cli c;
        unsetenv(names[1 - i]);
        for (int set = 0; set < 2; set++) {
            set ? setenv(names[i], "1", 1) : unsetenv(names[i]);
            assert_ok(parse(&c, &worker, NULL));
            assert_int_equal(c.own_waits, set);
            ps_cli_fini(&c);
        }
        unsetenv(names[i]);
    }
}

CLEAN_TEST(vectors_are_chosen)
{
    ps_cli c;
    setenv("PS_CPU_LEVEL", "plain", 1);
    assert_ok(parse(&c, &worker, NULL));
    assert_int_equal(ps_cpu_level_find(), PS_CPU_PLAIN);
    ps_cli_fini(&c);
    setenv("PS_CPU_LEVEL", "auto", 1);
    assert_ok(parse(&c, &worker, NULL));
    ps_cli_fini(&c);
    setenv("PS_CPU_LEVEL", "sse9", 1);
    assert_error(parse(&c, &worker, NULL), PS_ERR_ARG,
                 "PS_CPU_LEVEL: 'sse9' is not one of");
    ps_cli_fini(&c);
    unsetenv("PS_CPU_LEVEL");
}

CLEAN_TEST(flags_and_forms)
{
    ps_cli c;
    assert_ok(parse(&c, &worker,
                    ARGS("--config", "a.yaml", "--set=train.seed=3", "--rank=1", "--set",
                         "data.batch=[8, 4]", "--trace")));
    assert_string_equal(c.config, "a.yaml");
    assert_int_equal(c.rank, 1);
    assert_true(c.trace);
    assert_int_equal(c.n_overrides, 3);
    assert_string_equal(c.overrides[0], "train.trace=true");
    assert_string_equal(c.overrides[1], "train.seed=3");
    assert_string_equal(c.overrides[2], "data.batch=[8, 4]");
    ps_cli_fini(&c);
}

/* A worker reads torchrun's variables, a server our own. Flags override variables, and
 * --set overrides both. */
CLEAN_TEST(environment_and_precedence)
{
    ps_cli c;
    ps_config cfg;
    setenv("RANK", "2", 1);
    setenv("PS_SERVER_RANK", "1", 1);
    setenv("WORLD_SIZE", "4", 1);
    setenv("PS_SERVERS", "2", 1);
    setenv("LOCAL_RANK", "0", 1);
    setenv("MASTER_ADDR", "node7", 1);
    setenv("MASTER_PORT", "1234", 1);
    assert_ok(parse(&c, &worker, NULL));
    assert_int_equal(c.rank, 2);
    assert_int_equal(c.local_rank, 0);
    assert_string_equal(c.init_method, "tcp://node7:1234");
    assert_ok(ps_cli_load_config(&c, &worker, &cfg));
    assert_int_equal(cfg.job.workers, 4);
    assert_int_equal(cfg.job.servers, 2);
    ps_config_fini(&cfg);
    ps_cli_fini(&c);

    setenv("PS_NEWCOMER", "1", 1);
    assert_ok(parse(&c, &worker, NULL));
    assert_int_equal(c.rank, PS_RANK_NOT_0);
    ps_cli_fini(&c);
    unsetenv("PS_NEWCOMER");

    assert_ok(parse(&c, &server, ARGS("--world-size", "3")));
    assert_int_equal(c.rank, 1);
    assert_ok(ps_cli_load_config(&c, &server, &cfg));
    assert_int_equal(cfg.job.workers, 3);
    ps_config_fini(&cfg);
    ps_cli_fini(&c);

    assert_ok(parse(
        &c, &worker,
        ARGS("--world-size=5", "--set", "job.workers=6", "--init-method", "file:///x")));
    assert_string_equal(c.init_method, "file:///x");
    assert_ok(ps_cli_load_config(&c, &worker, &cfg));
    assert_int_equal(cfg.job.workers, 6);
    ps_config_fini(&cfg);
    ps_cli_fini(&c);

    setenv("MASTER_ADDR", "fd00::1", 1);
    assert_ok(parse(&c, &worker, ARGS("--init-method=env://")));
    assert_string_equal(c.init_method, "tcp://[fd00::1]:1234");
    ps_cli_fini(&c);
}

static void assert_address(const ps_cli_program *program, const char *const *args,
                           const char *want)
{
    ps_cli c;
    assert_ok(parse(&c, program, args));
    assert_string_equal(c.init_method, want);
    ps_cli_fini(&c);
}

/* torchrun's store is at MASTER_PORT, and torchrun says so. */
CLEAN_TEST(torchruns_store_keeps_its_port)
{
    setenv("MASTER_ADDR", "node7", 1);
    setenv("MASTER_PORT", "1234", 1);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "False", 1);
    assert_address(&worker, NULL, "tcp://node7:1234");
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    assert_address(&worker, NULL, "tcp://node7:1235");
    assert_address(&worker, ARGS("--init-method", "env://"), "tcp://node7:1235");
    assert_address(&server, NULL, "tcp://node7:1235"); // all parts agree
    assert_address(&worker, ARGS("--init-method", "tcp://node8:99"), "tcp://node8:99");
    setenv("PS_PORT", "4000", 1);
    assert_address(&worker, NULL, "tcp://node7:4000");
    assert_address(&server, NULL, "tcp://node7:4000");
    unsetenv("MASTER_PORT"); // then no store holds the default port
    unsetenv("PS_PORT");
    assert_address(&worker, NULL, "tcp://node7:29500");
}

static void assert_refused(const char *const *args, const char *want)
{
    ps_cli c;
    assert_error(parse(&c, &worker, args), PS_ERR_ARG, want);
    ps_cli_fini(&c);
}

CLEAN_TEST(bad_flags)
{
    assert_refused(ARGS("--ranks", "1"), "--ranks: unknown flag; did you mean --rank?");
    assert_refused(ARGS("--wordl-size=1"), "did you mean --world-size?");
    assert_refused(ARGS("--frobnicate"), "--help lists all");
    assert_refused(ARGS("train.seed=1"), "--set train.seed=1");
    assert_refused(ARGS("--rank"), "--rank: N is missing");
    assert_refused(ARGS("--rank", "one"), "--rank: 'one' is not a whole number");
    assert_refused(ARGS("--rank", "-1"), "--rank: -1 is not within 0 ..");
    assert_refused(ARGS("--world-size", "0"), "0 is not within 1 ..");
    assert_refused(ARGS("--trace=yes"), "--trace: takes no value");
    assert_refused(ARGS("--log-level", "loud"), "'loud' is not one of debug");
    assert_refused(ARGS("--init-method", "udp://x"), "'udp://x' is not one of tcp://");
    assert_refused(ARGS("--init-method", "env://"), "MASTER_ADDR is not set");
}

CLEAN_TEST(bad_environment)
{
    setenv("RANK", "x", 1);
    assert_refused(NULL, "RANK: 'x' is not a whole number");
    setenv("RANK", "", 1); // the same as not set
    setenv("MASTER_PORT", "99999", 1);
    assert_refused(NULL, "MASTER_PORT: '99999' is not a port");
    setenv("PS_PORT", "0", 1);
    assert_refused(NULL, "PS_PORT: '0' is not a port");
    unsetenv("PS_PORT");
    setenv("MASTER_PORT", "65535", 1);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    assert_refused(NULL, "no port comes after it");
}

CLEAN_TEST(rank_has_to_fit)
{
    ps_cli c;
    ps_config cfg;
    assert_ok(parse(&c, &worker, ARGS("--rank", "2", "--world-size", "2")));
    assert_error(ps_cli_load_config(&c, &worker, &cfg), PS_ERR_ARG,
                 "rank 2 does not fit a job of 2 workers");
    ps_cli_fini(&c);
}

CLEAN_TEST(help_says_everything)
{
    char *text = NULL, *argv[] = {"ps-server", "--help", NULL};
    size_t n = 0;
    ps_cli c;
    FILE *out = open_memstream(&text, &n);
    assert_non_null(out);
    assert_ok(ps_cli_parse(&c, &server, 2, argv, out));
    fclose(out);
    assert_true(c.done);
    static const char *const parts[] = {"Serves.",     "--init-method", "PS_SERVER_RANK",
                                        "MASTER_ADDR", "optimizer.lr",  "Examples",
                                        "Exit status"};
    for (int i = 0; i < 7; i++)
        assert_non_null(strstr(text, parts[i]));
    free(text);
    ps_cli_fini(&c);
}
