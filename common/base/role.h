/* What a process is in a job. */
#ifndef PS_ROLE_H
#define PS_ROLE_H

typedef enum ps_role { PS_ROLE_SERVER, PS_ROLE_WORKER, PS_ROLE_COUNT } ps_role;

const char *ps_role_name(ps_role role); // "server", "worker"

#endif
