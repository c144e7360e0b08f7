#include "trace.h"

#include "clock.h"

ps_err ps_trace_open(ps_trace *trace, const char *path, int rank)
{
    *trace = (ps_trace){.rank = rank, .start_ns = ps_clock_ns()};
    trace->file = fopen(path, "we");
    if (!trace->file) return ps_err_errno(PS_ERR_IO, "cannot write %s", path);
    fprintf(trace->file,
            "[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":0,"
            "\"args\":{\"name\":\"worker %d\"}}",
            rank, rank);
    return PS_OK;
}

void ps_trace_add(ps_trace *trace, const char *name, uint64_t begin_ns, uint64_t step)
{
    if (!trace->file) return;
    fprintf(trace->file,
            ",\n{\"name\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":0,\"ts\":%.3f,"
            "\"dur\":%.3f,\"args\":{\"step\":%llu}}",
            name, trace->rank, (double)(begin_ns - trace->start_ns) * 1e-3,
            (double)(ps_clock_ns() - begin_ns) * 1e-3, (unsigned long long)step);
}

ps_err ps_trace_close(ps_trace *trace)
{
    if (!trace->file) return PS_OK;
    FILE *file = trace->file;
    trace->file = NULL;
    fprintf(file, "\n]\n");
    int failed = ferror(file);
    if (fclose(file) != 0 || failed)
        return ps_err_errno(PS_ERR_IO, "cannot write the trace");
    return PS_OK;
}
