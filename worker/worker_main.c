/* ps-worker: computes. One process per GPU, or per group of cores. */
#include <signal.h>
#include <stdio.h>

#include "cli.h"
#include "clock_watch.h"
#include "dataset.h"
#include "describe.h"
#include "export_torch.h"
#include "fd_limit.h"
#include "interrupt.h"
#include "log.h"
#include "mem.h"
#include "model_spec.h"
#include "predict.h"
#include "serve.h"
#include "worker_job.h"
#include "wrapped.h"

/* As shells count: 143 after a SIGTERM of its own; 130 after SIGINT, or when another
 * member was interrupted. */
static int exit_interrupted(void)
{
    int number = ps_interrupt_signal();
    return PS_EXIT_SIGNAL + (number ? number : SIGINT);
}

/* EX_TEMPFAIL of sysexits.h: "try again". */
enum { EXIT_RESUMABLE = 75 };

static const ps_cli_program program = {
    .name = "ps-worker",
    .about =
        "A worker of a training job: reads its share of the data, computes gradients\n"
        "and exchanges them for new weights. deploy/psrun starts whole jobs.\n",
    .examples =
        "  ps-worker --config configs/digits-basicnet.yaml --set exchange.name=none \\\n"
        "      --world-size 1\n"
        "  MASTER_ADDR=node0 MASTER_PORT=29500 PS_SERVERS=2 WORLD_SIZE=4 RANK=3 \\\n"
        "      ps-worker --config configs/mnist-basicnet.yaml\n"};

/* Whether a person waits for the answer, not a job: psrun becomes this process then. */
static bool worker_main_answers(const ps_cli *cli)
{
    return cli->input || cli->describe || cli->export_torch || cli->check_data ||
           (cli->predict && cli->shares == 1) || cli->join_shares > 0 || cli->serve;
}

/* A line of the log where a person waits for the answer: as psrun prints its own lines,
 * without time and role. */
static void worker_main_say(void *ctx, ps_log_level level, const char *text)
{
    const int columns = ps_terminal_columns(stderr);
    const bool warns = level >= PS_LOG_WARN, yellow = warns && columns > 0;
    char line[2048];
    snprintf(line, sizeof line, "ps-worker: %s%s", warns ? "warning: " : "", text);
    flockfile(stderr);
    if (yellow) fputs("\x1b[33m", stderr);
    ps_print_wrapped(stderr, columns, 0, 2, line);
    if (yellow) fputs("\x1b[0m", stderr);
    funlockfile(stderr);
}

static int worker_main_fail(const ps_cli *cli, ps_err err)
{
    if (worker_main_answers(cli)) {
        char text[PS_ERR_MESSAGE_BYTES + 16];
        snprintf(text, sizeof text, "ps-worker: %s", ps_err_message());
        ps_print_wrapped(stderr, ps_terminal_columns(stderr), 0, 2, text);
    } else {
        ps_log_failure("failed", err);
    }
    return err == PS_ERR_INTERRUPTED ? exit_interrupted() : 1;
}

/* The defaults are those of training, where several workers share a host, and where each
 * rounding counts in all later steps. Here: all cores; and where outputs become
 * probabilities, Winograd's algorithm in the forward pass. */
static int threads_to_predict(const ps_cli *cli, ps_config *config)
{
    const bool probabilities = !PS_LOSS_OF_NUMBERS(config->model.loss);
    if (!ps_yaml_path(config->tree, "train.threads")) config->train.threads = 0;
    if (probabilities && !ps_yaml_path(config->tree, "train.winograd"))
        config->train.winograd = PS_WINOGRAD_ALL;
    return ps_worker_threads(cli, config, NULL);
}

/* 0: the layers do not say. Of an input that is not known yet, and that may have
 * categories, for whose embedding there may be settings. */
static int64_t count_outputs(ps_config *config)
{
    int64_t n = 0;
    ps_model_spec spec;
    config->model.input = (ps_int_list){1, {1}};
    for (int i = 0; i < 2 && n == 0; i++) {
        config->model.categories = (ps_int_list){i, {1}};
        if (ps_model_spec_init(&spec, config) == PS_OK) n = spec.n_outputs;
        ps_model_spec_fini(&spec);
    }
    config->model.input.n = config->model.categories.n = 0;
    return n;
}

/* A model's input that is not given is the data's. */
static ps_err worker_main_find_input(ps_config *config)
{
    if (config->model.input.n > 0 || !ps_config_has_model(config)) return PS_OK;
    return ps_dataset_find_input(config, count_outputs(config), &config->model.input,
                                 &config->model.categories);
}

/* A line, as a setting has it. */
static void print_list(const ps_int_list *list)
{
    putchar('[');
    for (int i = 0; i < list->n; i++)
        printf("%s%lld", i > 0 ? ", " : "", (long long)list->v[i]);
    puts("]");
}

static ps_err print_input(const ps_config *config)
{
    print_list(&config->model.input);
    if (config->model.categories.n > 0) print_list(&config->model.categories);
    return PS_OK;
}

/* Whether the answer is a text, which may go into a file. */
static bool worker_main_prints(const ps_cli *cli)
{
    return cli->done || cli->input || cli->describe || cli->export_torch ||
           cli->check_data;
}

static ps_err worker_main_end_text(void)
{
    const bool failed = ferror(stdout);
    if (fflush(stdout) == 0 && !failed) return PS_OK;
    return ps_err_set(PS_ERR_IO, "standard output: not all of the text could be written: "
                                 "is the disk full?");
}

static int run_job(const ps_cli *cli)
{
    ps_config config;
    ps_err err = ps_cli_load_config(cli, &program, &config);
    if (err != PS_OK) return worker_main_fail(cli, err);
    bool interrupted = false, resumable = false;
    err = worker_main_find_input(&config);
    if (err != PS_OK)
        ; // the data do not say it
    else if (cli->input)
        err = print_input(&config);
    else if (cli->describe)
        err = ps_describe(&config, stdout);
    else if (cli->export_torch)
        err = ps_export_torch(&config, stdout);
    else if (cli->predict)
        err = ps_predict(cli, &config, threads_to_predict(cli, &config));
    else if (cli->serve)
        err = ps_serve(cli, &config, threads_to_predict(cli, &config));
    else if (cli->join_shares > 0)
        err = ps_predict_join(cli, &config);
    else
        err = ps_worker_job_run(cli, &config, &interrupted, &resumable);
    int code = err != PS_OK  ? worker_main_fail(cli, err)
               : interrupted ? exit_interrupted()
                             : 0;
    if (resumable) code = EXIT_RESUMABLE;
    ps_config_fini(&config);
    return code;
}

int main(int argc, char **argv)
{
    ps_cli cli;
    ps_mem_keep_freed();
    ps_fd_limit_raise();
    ps_log_init("worker", PS_LOG_INFO);
    ps_err err = ps_cli_parse(&cli, &program, argc, argv, stdout);
    if (err == PS_OK && !cli.done) {
        char role[32] = "worker";
        if (cli.rank >= 0) snprintf(role, sizeof role, "worker/%d", cli.rank);
        ps_log_init(role, cli.log_level);
        if (worker_main_answers(&cli))
            ps_log_set_sink(worker_main_say, NULL, cli.log_level);
        err = ps_interrupt_init();
        if (err == PS_OK) err = ps_clock_watch(); // after it: signals are blocked
    }
    int code = err != PS_OK ? worker_main_fail(&cli, err) : cli.done ? 0 : run_job(&cli);
    if (code == 0 && worker_main_prints(&cli) && (err = worker_main_end_text()) != PS_OK)
        code = worker_main_fail(&cli, err);
    ps_cli_fini(&cli);
    return code;
}
