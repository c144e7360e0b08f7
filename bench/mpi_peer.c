/* Times MPI's all-reduce: mpi_peer STEPS WARMUP BYTES ... Rank 0 prints {"BYTES":
 * [nanoseconds, ...], ...}. bench/exchange compiles it with mpicc if that is installed,
 * so the build does not need MPI. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static void measure(int rank, long steps, long warmup, long bytes, int first)
{
    int n = (int)(bytes / (long)sizeof(float));
    float *in = calloc((size_t)n, sizeof *in), *out = calloc((size_t)n, sizeof *out);
    if (!in || !out) MPI_Abort(MPI_COMM_WORLD, 1);
    if (rank == 0) printf("%s\"%ld\": [", first ? "{" : ", ", bytes);
    for (long i = 0; i < warmup + steps; i++) {
        double begun = MPI_Wtime();
        MPI_Allreduce(in, out, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (rank == 0 && i >= warmup)
            printf("%s%.0f", i > warmup ? ", " : "", (MPI_Wtime() - begun) * 1e9);
    }
    if (rank == 0) printf("]");
    free(in);
    free(out);
}

int main(int argc, char **argv)
{
    int rank;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int i = 3; i < argc; i++)
        measure(rank, strtol(argv[1], NULL, 10), strtol(argv[2], NULL, 10),
                strtol(argv[i], NULL, 10), i == 3);
    if (rank == 0 && argc > 3) printf("}\n");
    MPI_Finalize();
    return 0;
}
