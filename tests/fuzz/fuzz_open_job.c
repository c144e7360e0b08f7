/* Any bytes as worker 0's message about an open job's tensors. What the reader takes must
 * come back the same from the writer. */
#include <stdint.h>
#include <stdlib.h>

#include "open_job.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ps_open_job job, again;
    if (ps_open_job_read(data, size, &job) != PS_OK) return 0;
    ps_mp_writer w;
    ps_mp_writer_init(&w);
    if (ps_open_job_write(&job, &w) != PS_OK) abort();
    if (ps_open_job_read(w.base, w.used, &again) != PS_OK) abort();
    if (again.table.arena_count != job.table.arena_count ||
        again.table.buffer_bytes != job.table.buffer_bytes ||
        again.n_settings != job.n_settings || again.n_groups != job.n_groups)
        abort();
    ps_open_job_fini(&job);
    ps_open_job_fini(&again);
    ps_mp_writer_fini(&w);
    return 0;
}
