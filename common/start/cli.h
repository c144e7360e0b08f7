/* The command line that ps-server and ps-worker share, and the environment behind it.
 *
 * Precedence: --set, then flags, then the environment, then the configuration file. With
 * config.c this is the only place that reads the environment.
 */
#ifndef PS_CLI_H
#define PS_CLI_H

#include <stdbool.h>
#include <stdio.h>

#include "config.h"
#include "log.h"

/* What differs between the programs; constant. */
typedef struct ps_cli_program {
    const char *name;     // "ps-worker"
    const char *about;    // a paragraph for --help, ending with a newline
    const char *examples; // lines for --help, each ending with a newline
    bool is_server;       // its rank is PS_SERVER_RANK, not RANK
} ps_cli_program;

typedef struct ps_cli {
    bool done; // --help, --keys, --version, --make-keys or --probe was done: exit with 0
    const char *config; // borrowed from argv; "" when not given
    char *init_method;  // tcp://host:port or file:///path: env:// is resolved; owned
    bool next_port;  // init_method uses the port after MASTER_PORT, which torchrun holds
    int rank;        // -1: not given, take a free one; PS_RANK_NOT_0: of a newcomer
    int local_rank;  // -1: not given
    int incarnation; // how often this process was started before
    int world_size;  // workers by flag or environment; -1: as the file says
    int servers;     // server processes, likewise
    const char *out; // borrowed from argv; NULL when not given
    bool overwrite;  // a run that is in `out` may be overwritten
    const char *resume;  // a run's folder, or "auto"; borrowed; NULL when not given
    bool resume_auto;    // go on with the run in `out`, or begin one there
    bool check_data;     // read the data, run no job
    bool input;          // print model.input as the data have it, run no job
    bool describe;       // print the model, run no job
    bool export_torch;   // print the model as PyTorch source, run no job
    const char *predict; // a file, or "test"; borrowed; NULL: a job
    int serve;           // a port to answer requests for predictions on; 0: a job
    int share, shares;   // of the samples to predict: from 0; shares 1: all
    int join_shares;     // put that many together, run no job; 0: no
    bool trace;          // also among the overrides, as train.trace
    ps_log_level log_level;
    int default_threads; // OMP_NUM_THREADS, else 0; used when train.threads is 0
    /* Variables that change what CUDA's libraries round, "NVIDIA_TF32_OVERRIDE=1"; "":
     * none is set. */
    char cuda_overrides[256];
    bool own_waits;   // OMP_WAIT_POLICY or GOMP_SPINCOUNT says how these threads wait
    int bar_columns;  // width of the progress bar that a launcher draws; 0: it draws none
    char **overrides; // owned: for ps_config_load, sizes first, then every --set
    int n_overrides;
} ps_cli;

/* Reads argv (borrowed for the life of cli). --help, --keys and --version print to out,
 * --probe runs during the call. ARG with one clear sentence on failure; cli is safe for
 * fini in every case. */
ps_err ps_cli_parse(ps_cli *cli, const ps_cli_program *program, int argc, char **argv,
                    FILE *out);
void ps_cli_fini(ps_cli *cli);

/* ps_config_load with the file and overrides of cli, and a check that the rank fits the
 * size of the job. Logs what is not as the environment reads. cfg is safe for fini after
 * a failure. */
ps_err ps_cli_load_config(const ps_cli *cli, const ps_cli_program *program,
                          ps_config *cfg);

#endif
