#include "cli.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "cpu_level.h"
#include "mem.h"
#include "nearest_name.h"
#include "parse_text.h"
#include "probe.h"
#include "tell.h"

static const char DEFAULT_ADDRESS[] = "127.0.0.1", DEFAULT_PORT[] = "29500";

typedef enum flag_id {
    FLAG_CONFIG,
    FLAG_SET,
    FLAG_INIT_METHOD,
    FLAG_RANK,
    FLAG_WORLD_SIZE,
    FLAG_SERVERS,
    FLAG_LOCAL_RANK,
    FLAG_OUT,
    FLAG_OVERWRITE,
    FLAG_RESUME,
    FLAG_TRACE,
    FLAG_LOG_LEVEL,
    FLAG_CHECK_DATA,
    FLAG_INPUT,
    FLAG_DESCRIBE,
    FLAG_EXPORT_TORCH,
    FLAG_INIT,
    FLAG_PREDICT,
    FLAG_SERVE,
    FLAG_SHARE,
    FLAG_JOIN_SHARES,
    FLAG_CURVE,
    FLAG_INSECURE,
    FLAG_MAKE_KEYS,
    FLAG_PROBE,
    FLAG_HELP,
    FLAG_KEYS,
    FLAG_VERSION,
    FLAG_COUNT
} flag_id;

static const struct {
    const char *name, *value, *help; // value NULL: takes none
} flags[FLAG_COUNT] = {
    [FLAG_CONFIG] = {"--config", "FILE",
                     "the job, in YAML; not given: defaults and --set"},
    [FLAG_SET] = {"--set", "KEY=VALUE", "override a key of the file; repeatable"},
    [FLAG_INIT_METHOD] = {"--init-method", "URL",
                          "where the coordinator is: tcp://host:port, env://,\n"
                          "file:///shared/path; not given: env://"},
    [FLAG_RANK] = {"--rank", "N",
                   "this process's rank among its kind; not given: a free one"},
    [FLAG_WORLD_SIZE] = {"--world-size", "N", "worker processes of the job"},
    [FLAG_SERVERS] = {"--servers", "N", "server processes of the job"},
    [FLAG_LOCAL_RANK] = {"--local-rank", "N", "rank on this host; picks the GPU"},
    [FLAG_OUT] = {"--out", "DIR", "folder of the results; not given: runs/<job>-<time>"},
    [FLAG_OVERWRITE] = {"--overwrite", NULL,
                        "replace the run that the folder holds already"},
    [FLAG_RESUME] = {"--resume", "RUN",
                     "go on from the newest checkpoint of that folder; auto: of\n"
                     "--out's, or begin anew where it has none"},
    [FLAG_TRACE] = {"--trace", NULL,
                    "record what this process did when, into trace/ of\n"
                    "--out (train.trace); deploy/trace-report reads it"},
    [FLAG_LOG_LEVEL] = {"--log-level", "LEVEL",
                        "debug, info, warn or error; default info"},
    [FLAG_CHECK_DATA] = {"--check-data", NULL,
                         "no job: read configuration and data, as far as a few\n"
                         "seconds allow, and say what there is"},
    [FLAG_INPUT] = {"--input", NULL,
                    "no job: model.input as the training samples have it"},
    [FLAG_DESCRIBE] = {"--describe", NULL,
                       "no job: the model as a table of layers, with shapes,\n"
                       "parameters, memory and operations"},
    [FLAG_EXPORT_TORCH] = {"--export-torch", NULL,
                           "no job: the model as PyTorch source, on stdout"},
    [FLAG_INIT] = {"--init", "FILE", "weights to begin with, safetensors (train.init)"},
    [FLAG_PREDICT] = {"--predict", "FILE",
                      "no job: what the model with the weights of --init says of the\n"
                      "samples in that file (npy, a table, a picture), of the pictures\n"
                      "in that folder, of standard input (-), or of the test set\n"
                      "(test); into --out's predictions.csv and predictions.npy"},
    [FLAG_SERVE] = {"--serve", "PORT",
                    "no job: the same over HTTP with JSON, on this host alone"},
    [FLAG_SHARE] = {"--share", "R/N",
                    "with --predict: only share R, from 0, of N of the samples"},
    [FLAG_JOIN_SHARES] = {"--join-shares", "N",
                          "no job: put the predictions of N shares in --out together"},
    [FLAG_CURVE] = {"--curve", "DIR",
                    "encrypt, with the job's keys in that folder (net.curve)"},
    [FLAG_INSECURE] = {"--insecure", NULL,
                       "let what is not encrypted leave this host (net.insecure)"},
    [FLAG_MAKE_KEYS] = {"--make-keys", "DIR",
                        "no job: write the keys of a job into that folder, server.key\n"
                        "and worker.key, unless they are there"},
    [FLAG_PROBE] = {"--probe", "WHAT",
                    "no job: serve:PORT answers probes for 60 s, HOST:PORT\n"
                    "measures round trip and rate to one that answers"},
    [FLAG_HELP] = {"--help", NULL, "this text"},
    [FLAG_KEYS] = {"--keys", NULL, "the configuration keys as a Markdown table"},
    [FLAG_VERSION] = {"--version", NULL, "the version"},
};

static const char ENVIRONMENT[] =
    "Environment (where no flag is given; torchrun's names):\n"
    "  MASTER_ADDR, MASTER_PORT   the coordinator's address, for env://;\n"
    "                             127.0.0.1 and 29500 when not set\n"
    "  PS_PORT                    its port, instead of MASTER_PORT\n"
    "  TORCHELASTIC_USE_AGENT_STORE\n"
    "                             True, as torchrun sets it: its own store holds\n"
    "                             MASTER_PORT, the coordinator takes the next one\n"
    "  RANK, WORLD_SIZE           a worker's rank; worker processes of the job\n"
    "  LOCAL_RANK                 rank on this host; picks the GPU\n"
    "  PS_SERVER_RANK             a server's rank\n"
    "  PS_SERVERS                 server processes of the job\n"
    "  PS_INCARNATION             how often a launcher has started this process\n"
    "                             before: a later one takes the place of an earlier\n"
    "  PS_NEWCOMER                it joins a job that runs: it is never worker 0\n"
    "  PS_CURVE_DIR               the folder of the job's keys, as --curve\n"
    "  PS_CURVE_KEY               the text of this role's key file, instead\n"
    "  OMP_NUM_THREADS            threads of a worker where train.threads is 0, at most\n"
    "  OMP_WAIT_POLICY, GOMP_SPINCOUNT\n"
    "                             how they wait for each other; they spin, or sleep\n"
    "                             beside other load, where neither is set\n"
    "  PS_EVENTS                  DESCRIPTOR:INODE of a launcher's pipe, which gets "
    "what\n"
    "                             happens as lines of JSON\n"
    "  PS_CPU_LEVEL               vectors to use: plain, avx2, avx512; auto (the best\n"
    "                             that there are) when not set\n";

static void print_help(const ps_cli_program *program, FILE *out)
{
    fprintf(out, "%s %s\n\n%s\nUsage: %s --config FILE [--set KEY=VALUE ...] [flags]\n\n",
            program->name, PS_VERSION, program->about, program->name);
    for (int i = 0; i < FLAG_COUNT; i++) {
        char left[40];
        snprintf(left, sizeof left, "%s %s", flags[i].name,
                 flags[i].value ? flags[i].value : "");
        for (const char *line = flags[i].help; line;) {
            size_t n = strcspn(line, "\n");
            fprintf(out, "  %-22s %.*s\n", left, (int)n, line);
            left[0] = '\0';
            line = line[n] ? line + n + 1 : NULL;
        }
    }
    fprintf(
        out,
        "\n%s\nPrecedence: --set, flags, environment, file.\n\nExamples:\n%s\n"
        "Exit status: 0 when the job finished; 130 after Ctrl-C and 143 after SIGTERM,\n"
        "which keep the weights (a second one ends at once); 75 instead where there is "
        "a\n"
        "checkpoint of the last step (checkpoint.*): start it again with --resume; else\n"
        "1 and one line that says why.\n\n"
        "Configuration keys (FILE holds them nested, --set dotted; =default):\n",
        ENVIRONMENT, program->examples);
    ps_config_print_help(out);
}

/* ---- single values ---- */

static ps_err parse_count(const char *from, const char *text, int min, int max, int *out)
{
    int64_t v;
    if (!ps_parse_int(text, &v))
        return ps_err_set(PS_ERR_ARG, "%s: '%.40s' is not a whole number", from, text);
    if (v < min || v > max)
        return ps_err_set(PS_ERR_ARG, "%s: %lld is not within %d .. %d", from,
                          (long long)v, min, max);
    *out = (int)v;
    return PS_OK;
}

static ps_err parse_level(const char *text, ps_log_level *out)
{
    static const ps_word words[] = {{"debug", PS_LOG_DEBUG},
                                    {"info", PS_LOG_INFO},
                                    {"warn", PS_LOG_WARN},
                                    {"error", PS_LOG_ERROR},
                                    {NULL, 0}};
    int level;
    if (ps_word_find(words, text, &level)) {
        *out = (ps_log_level)level;
        return PS_OK;
    }
    return ps_err_set(
        PS_ERR_ARG, "--log-level: '%.40s' is not one of debug, info, warn, error", text);
}

static ps_err add_override(ps_cli *cli, const char *text)
{
    size_t n = (size_t)cli->n_overrides;
    char **grown = realloc(cli->overrides, (n + 1) * sizeof *grown);
    if (!grown) return ps_err_set(PS_ERR_NOMEM, "no memory for --set");
    cli->overrides = grown;
    PS_TRY(ps_mem_strdup(&grown[n], text));
    cli->n_overrides++;
    return PS_OK;
}

/* ---- argv ---- */

typedef struct arguments {
    const char *value[FLAG_COUNT]; // the last of each; "" for a flag without value
    int n_sets;
    const char **sets; // owned; borrowed texts
} arguments;

static ps_err find_flag(const char *arg, size_t n, int *out)
{
    const char *names[FLAG_COUNT], *near;
    char name[64];
    for (int i = 0; i < FLAG_COUNT; i++) {
        names[i] = flags[i].name;
        if (strlen(names[i]) != n || memcmp(names[i], arg, n) != 0) continue;
        *out = i;
        return PS_OK;
    }
    snprintf(name, sizeof name, "%.*s", (int)(n < 60 ? n : 60), arg);
    if (name[0] != '-')
        return ps_err_set(PS_ERR_ARG, "%s: only flags are expected (keys: --set %s)",
                          name, strchr(arg, '=') ? arg : "KEY=VALUE");
    near = ps_nearest_name(name, names, FLAG_COUNT);
    if (near)
        return ps_err_set(PS_ERR_ARG, "%s: unknown flag; did you mean %s?", name, near);
    return ps_err_set(PS_ERR_ARG, "%s: unknown flag (--help lists all)", name);
}

/* Both "--flag value" and "--flag=value". */
static ps_err cli_split(int argc, char **argv, arguments *out)
{
    for (int i = 1; i < argc; i++) {
        const char *arg = strcmp(argv[i], "-h") == 0 ? "--help" : argv[i];
        size_t n = strcspn(arg, "=");
        const char *value = arg[n] ? arg + n + 1 : NULL;
        int id = 0;
        PS_TRY(find_flag(arg, n, &id));
        if (!flags[id].value && value)
            return ps_err_set(PS_ERR_ARG, "%s: takes no value", flags[id].name);
        if (flags[id].value && !value) {
            if (i + 1 == argc)
                return ps_err_set(PS_ERR_ARG, "%s: %s is missing", flags[id].name,
                                  flags[id].value);
            value = argv[++i];
        }
        out->value[id] = value ? value : "";
        if (id == FLAG_SET) out->sets[out->n_sets++] = value;
    }
    return PS_OK;
}

/* ---- the environment ---- */

/* NULL when it is not set or empty. */
static const char *cli_environment(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

/* Reads the flag, else the variable; else *out is unchanged. */
static ps_err cli_count_of(const arguments *args, flag_id id, const char *variable,
                           int min, int *out)
{
    if (args->value[id])
        return parse_count(flags[id].name, args->value[id], min, PS_MAX_RANKS, out);
    const char *value = cli_environment(variable);
    return value ? parse_count(variable, value, min, PS_MAX_RANKS, out) : PS_OK;
}

static ps_err parse_port(const char *from, const char *text, int *out)
{
    int64_t number;
    if (!ps_parse_int(text, &number) || number < 1 || number > 65535)
        return ps_err_set(PS_ERR_ARG, "%s: '%.40s' is not a port (1 .. 65535)", from,
                          text);
    *out = (int)number;
    return PS_OK;
}

/* PS_PORT, else MASTER_PORT, or the port after it when torchrun says that its own store
 * holds MASTER_PORT. */
static ps_err find_port(ps_cli *cli, int *out)
{
    const char *own = cli_environment("PS_PORT"), *port = cli_environment("MASTER_PORT");
    const char *store = cli_environment("TORCHELASTIC_USE_AGENT_STORE");
    if (own) return parse_port("PS_PORT", own, out);
    PS_TRY(parse_port("MASTER_PORT", port ? port : DEFAULT_PORT, out));
    cli->next_port = port && store && strcmp(store, "True") == 0;
    if (cli->next_port && *out == 65535)
        return ps_err_set(PS_ERR_ARG,
                          "MASTER_PORT: torchrun's store holds 65535, and no port comes "
                          "after it; PS_PORT names another one for the coordinator");
    *out += cli->next_port;
    return PS_OK;
}

static ps_err from_environment(ps_cli *cli, bool wanted)
{
    const char *address = cli_environment("MASTER_ADDR");
    int port = 0;
    if (wanted && !address)
        return ps_err_set(PS_ERR_ARG, "--init-method env://: MASTER_ADDR is not set");
    if (!address) address = DEFAULT_ADDRESS;
    PS_TRY(find_port(cli, &port));
    bool bare_ipv6 = strchr(address, ':') && address[0] != '[';
    size_t room = strlen(address) + 40;
    PS_TRY(ps_mem_zalloc(&cli->init_method, room, 1, "address"));
    snprintf(cli->init_method, room, "tcp://%s%s%s:%d", bare_ipv6 ? "[" : "", address,
             bare_ipv6 ? "]" : "", port);
    return PS_OK;
}

static ps_err find_init_method(ps_cli *cli, const char *given)
{
    if (!given || strcmp(given, "env://") == 0) return from_environment(cli, given);
    if (strncmp(given, "tcp://", 6) != 0 && strncmp(given, "file://", 7) != 0)
        return ps_err_set(PS_ERR_ARG,
                          "--init-method: '%.80s' is not one of tcp://host:port, env://, "
                          "file:///path",
                          given);
    return ps_mem_strdup(&cli->init_method, given);
}

static ps_err add_size(ps_cli *cli, const char *key, int n)
{
    char text[64];
    if (n < 0) return PS_OK;
    snprintf(text, sizeof text, "%s=%d", key, n);
    return add_override(cli, text);
}

/* Where the keys are: a folder, or a key itself; NULL: there are none. */
static const char *keys_of(const arguments *args)
{
    if (args->value[FLAG_CURVE]) return args->value[FLAG_CURVE];
    const char *key = cli_environment("PS_CURVE_KEY");
    return key ? key : cli_environment("PS_CURVE_DIR");
}

static ps_err add_text(ps_cli *cli, const char *key, const char *value)
{
    char *text;
    if (!value) return PS_OK;
    size_t n = strlen(key) + strlen(value) + 2;
    PS_TRY(ps_mem_zalloc(&text, n, 1, "a setting"));
    snprintf(text, n, "%s=%s", key, value);
    ps_err err = add_override(cli, text);
    free(text);
    return err;
}

/* psrun sets both when it draws the bar on its own terminal. */
static ps_err find_bar(ps_cli *cli)
{
    int64_t columns = 80;
    const char *progress = cli_environment("PS_PROGRESS"),
               *width = cli_environment("COLUMNS");
    if (!progress || strcmp(progress, "bar") != 0) return PS_OK;
    if (width && (!ps_parse_int(width, &columns) || columns < 1 || columns > 10000))
        return ps_err_set(PS_ERR_ARG, "COLUMNS: '%.40s' is not a width", width);
    cli->bar_columns = (int)columns;
    return PS_OK;
}

/* "2/8": share 2 of 8. */
static ps_err parse_share(const char *text, int *share, int *shares)
{
    const char *slash = strchr(text, '/');
    char number[16] = "";
    if (slash && (size_t)(slash - text) < sizeof number)
        memcpy(number, text, (size_t)(slash - text));
    int64_t i, n;
    if (!slash || !ps_parse_int(number, &i) || !ps_parse_int(slash + 1, &n) || i < 0 ||
        i >= n || n > PS_MAX_RANKS)
        return ps_err_set(PS_ERR_ARG,
                          "--share: '%.40s' is not R/N with R from 0 to N - 1, and N at "
                          "most %d",
                          text, PS_MAX_RANKS);
    *share = (int)i;
    *shares = (int)n;
    return PS_OK;
}

static ps_err fill_prediction(ps_cli *cli, const arguments *args)
{
    const char *share = args->value[FLAG_SHARE], *join = args->value[FLAG_JOIN_SHARES];
    cli->predict = args->value[FLAG_PREDICT];
    if (args->value[FLAG_SERVE])
        PS_TRY(parse_port("--serve", args->value[FLAG_SERVE], &cli->serve));
    if (share && !cli->predict)
        return ps_err_set(PS_ERR_ARG, "--share %.40s: it needs --predict", share);
    if (share) PS_TRY(parse_share(share, &cli->share, &cli->shares));
    if (!join) return PS_OK;
    return parse_count(flags[FLAG_JOIN_SHARES].name, join, 1, PS_MAX_RANKS,
                       &cli->join_shares);
}

static void note_cuda_overrides(ps_cli *cli)
{
    static const char *const names[] = {
        "NVIDIA_TF32_OVERRIDE", "CUBLAS_EMULATE_SINGLE_PRECISION",
        "CUBLAS_EMULATION_STRATEGY", "CUBLAS_FIXEDPOINT_EMULATION_MANTISSA_BIT_COUNT"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = cli_environment(names[i]);
        const size_t n = strlen(cli->cuda_overrides);
        if (value)
            snprintf(cli->cuda_overrides + n, sizeof cli->cuda_overrides - n,
                     "%s%s=%.40s", n ? " " : "", names[i], value);
    }
}

static ps_err cli_fill(ps_cli *cli, const ps_cli_program *program, const arguments *args)
{
    const char *rank = program->is_server ? "PS_SERVER_RANK" : "RANK";
    PS_TRY(cli_count_of(args, FLAG_RANK, rank, 0, &cli->rank));
    if (cli_environment("PS_NEWCOMER")) cli->rank = PS_RANK_NOT_0; // psrun --join
    PS_TRY(cli_count_of(args, FLAG_LOCAL_RANK, "LOCAL_RANK", 0, &cli->local_rank));
    PS_TRY(cli_count_of(args, FLAG_WORLD_SIZE, "WORLD_SIZE", 1, &cli->world_size));
    PS_TRY(cli_count_of(args, FLAG_SERVERS, "PS_SERVERS", 0, &cli->servers));
    const char *incarnation = cli_environment("PS_INCARNATION");
    if (incarnation)
        PS_TRY(parse_count("PS_INCARNATION", incarnation, 0, INT_MAX, &cli->incarnation));
    int threads = 0;
    const char *omp = cli_environment("OMP_NUM_THREADS");
    // OpenMP's variable may hold a list ("4,2"), so other values are no error.
    if (omp && (threads = atoi(omp)) > 0) cli->default_threads = threads;
    cli->own_waits =
        cli_environment("OMP_WAIT_POLICY") || cli_environment("GOMP_SPINCOUNT");
    note_cuda_overrides(cli);
    const char *vectors = cli_environment("PS_CPU_LEVEL");
    if (vectors) PS_TRY(ps_cpu_level_use(vectors));
    PS_TRY(find_bar(cli));
    PS_TRY(find_init_method(cli, args->value[FLAG_INIT_METHOD]));
    if (args->value[FLAG_CONFIG]) cli->config = args->value[FLAG_CONFIG];
    if (args->value[FLAG_LOG_LEVEL])
        PS_TRY(parse_level(args->value[FLAG_LOG_LEVEL], &cli->log_level));
    cli->out = args->value[FLAG_OUT];
    cli->overwrite = args->value[FLAG_OVERWRITE] != NULL;
    cli->resume = args->value[FLAG_RESUME];
    cli->resume_auto = cli->resume && strcmp(cli->resume, "auto") == 0;
    if (!cli->out && !cli->resume_auto) cli->out = cli->resume;
    cli->trace = args->value[FLAG_TRACE] != NULL;
    cli->check_data = args->value[FLAG_CHECK_DATA] != NULL;
    cli->input = args->value[FLAG_INPUT] != NULL;
    cli->describe = args->value[FLAG_DESCRIBE] != NULL;
    cli->export_torch = args->value[FLAG_EXPORT_TORCH] != NULL;
    PS_TRY(fill_prediction(cli, args));
    for (flag_id f = FLAG_CHECK_DATA; f <= FLAG_JOIN_SHARES && program->is_server; f++)
        if (args->value[f])
            return ps_err_set(PS_ERR_ARG, "%s: only ps-worker has this flag",
                              flags[f].name);
    PS_TRY(add_size(cli, "job.workers", cli->world_size));
    PS_TRY(add_size(cli, "job.servers", cli->servers));
    if (cli->trace) PS_TRY(add_override(cli, "train.trace=true"));
    PS_TRY(add_text(cli, "train.init", args->value[FLAG_INIT]));
    PS_TRY(add_text(cli, "net.curve", keys_of(args)));
    if (args->value[FLAG_INSECURE]) PS_TRY(add_override(cli, "net.insecure=true"));
    for (int i = 0; i < args->n_sets; i++)
        PS_TRY(add_override(cli, args->sets[i]));
    return PS_OK;
}

/* A probe reads no configuration, and no --set. */
static ps_err cli_probe(const ps_cli_program *program, const arguments *args, FILE *out)
{
    const ps_role role = program->is_server ? PS_ROLE_SERVER : PS_ROLE_WORKER;
    const char *keys = keys_of(args);
    const bool insecure = args->value[FLAG_INSECURE] != NULL;
    ps_curve curve;
    int servers = 1;
    PS_TRY(ps_curve_load(&curve, keys ? keys : "", insecure, role));
    PS_TRY(cli_count_of(args, FLAG_SERVERS, "PS_SERVERS", 0, &servers));
    const ps_probe_options o = {.what = args->value[FLAG_PROBE],
                                .curve = &curve,
                                .peer = servers > 0 ? PS_ROLE_SERVER : PS_ROLE_WORKER};
    return ps_probe_run(&o, out);
}

/* What flags ask for instead of a job; cli->done: there was something. */
static ps_err do_asked(ps_cli *cli, const ps_cli_program *program, const arguments *args,
                       FILE *out)
{
    cli->done = true;
    if (args->value[FLAG_MAKE_KEYS]) return ps_curve_make(args->value[FLAG_MAKE_KEYS]);
    if (args->value[FLAG_PROBE]) return cli_probe(program, args, out);
    cli->done = false;
    return PS_OK;
}

/* True when a flag asked for output instead of a job. */
static bool print_asked(const ps_cli_program *program, const arguments *args, FILE *out)
{
    if (args->value[FLAG_HELP])
        print_help(program, out);
    else if (args->value[FLAG_KEYS])
        ps_config_print_markdown(out);
    else if (args->value[FLAG_VERSION])
        fprintf(out, "%s %s\n", program->name, PS_VERSION);
    else
        return false;
    return true;
}

ps_err ps_cli_parse(ps_cli *cli, const ps_cli_program *program, int argc, char **argv,
                    FILE *out)
{
    arguments args = {0};
    *cli = (ps_cli){.config = "",
                    .rank = -1,
                    .local_rank = -1,
                    .world_size = -1,
                    .shares = 1,
                    .servers = -1,
                    .log_level = PS_LOG_INFO};
    ps_tell_start(cli_environment("PS_EVENTS"));
    PS_TRY(PS_NEW(&args.sets, (size_t)argc, "arguments"));
    ps_err err = cli_split(argc, argv, &args);
    if (err == PS_OK) cli->done = print_asked(program, &args, out);
    if (err == PS_OK && !cli->done) err = do_asked(cli, program, &args, out);
    if (err == PS_OK && !cli->done) err = cli_fill(cli, program, &args);
    if (err == PS_OK && !cli->done) ps_tell("begun", "{}");
    free(args.sets);
    return err;
}

void ps_cli_fini(ps_cli *cli)
{
    for (int i = 0; i < cli->n_overrides; i++)
        free(cli->overrides[i]);
    free(cli->overrides);
    free(cli->init_method);
    *cli = (ps_cli){0};
}

ps_err ps_cli_load_config(const ps_cli *cli, const ps_cli_program *program,
                          ps_config *cfg)
{
    if (cli->next_port && cli->rank <= 0) // once per job is enough
        PS_INFO("torchrun",
                "its store holds MASTER_PORT; the coordinator is at %s (PS_PORT or "
                "--init-method choose another address)",
                cli->init_method);
    PS_TRY(ps_config_load(cfg, cli->config, (const char *const *)cli->overrides,
                          cli->n_overrides));
    long long n = program->is_server ? cfg->job.servers : cfg->job.workers;
    if (cli->rank < n || (!program->is_server && ps_config_elastic(cfg))) return PS_OK;
    ps_config_fini(cfg);
    return ps_err_set(PS_ERR_ARG, "rank %d does not fit a job of %lld %s", cli->rank, n,
                      program->is_server ? "servers (--servers, PS_SERVERS, job.servers)"
                                         : "workers (--world-size, WORLD_SIZE, "
                                           "job.workers)");
}
