/* The trace of a process of a job, as its configuration asks for it. For programs. */
#ifndef PS_TRACE_OF_JOB_H
#define PS_TRACE_OF_JOB_H

#include "member.h"

/* Once the process has joined: with train.trace, starts the trace in
 * folder/trace/<role>-<rank>.trace, unless it was started before. A process that was
 * started again (incarnation) has a file of its own. folder: NULL or "": there is no
 * trace. member: NULL: alone. IO. */
ps_err ps_trace_of_job(const ps_config *config, const char *folder, int incarnation,
                       ps_role role, int rank, const ps_member *member);
/* When the process has left for good. A trace that could not be written gives a warning:
 * the job has done its work. */
void ps_trace_of_job_ended(void);

#endif
