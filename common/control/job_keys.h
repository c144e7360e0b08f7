/* The keys of the coordinator's store (member.h: put, get): what each holds, and who may
 * set it.
 *
 *   job/total_steps       where the job begins and ends (job_start.h)         worker 0
 *   job/tensors           of a job without a model: open_job.h            worker 0
 *   job/policy            sync_codec.h: the rules                             worker 0
 *   job/policy_batches    the same: what the workers' pushes weigh            worker 0
 *   policy/end            nothing: the workers are to rest soon             any worker
 *   policy/<n>            sync_codec.h: the n-th rest                  the coordinator
 *   policy/<n>/<k>        its k-th further piece of the record           the coordinator
 *   job/trainer           JSON, the step loop's state where a job goes on     worker 0
 *   job/place/<n>         after n rests (trainer_reentry.h)                     worker 0
 *   job/data              JSON: what tells its data from others'              worker 0
 *   file/folder           where worker 0 writes                               worker 0
 *   file/init             the file of first weights, or nothing               worker 0
 *   file/init/read        nothing: it has been read                           worker 0
 *   buffers/<n>           the buffer arena, the n-th time it is shared        worker 0
 *   nccl/id               NCCL's unique id                                    worker 0
 *   server/0/again        a byte if its process has been in the job before    server 0
 *   server/<rank>/shm     name of its door to shared memory, or nothing       that server
 *   server/<rank>/rows    two lists of numbers: the points to which its embedding
 *                         tables, which were in the job before, can go back; and
 *                         those that it keeps for the server before it        that server
 *   server/<rank>/stats   JSON, its account of the job                        that server
 *   worker/<rank>/shm     as a server's                                       that worker
 *   worker/<rank>/piece   a part of an array, to worker 0                     that worker
 *   worker/<rank>/array   a part of what a program shares with the others  that worker
 *   worker/<rank>/link/shm, worker/<rank>/link/tcp
 *                         where other workers find it (link_meet.h)         that worker
 *   job/<rank>/piece      a part of an array, to that worker                  worker 0
 *   gloo/...              what Gloo's Store keeps                             any worker
 *   table/<n>/KEY         KEY, once the job has its n-th other table of tensors
 *                         (ps_member_next_table), if it is the table's            KEY's
 */
#ifndef PS_JOB_KEYS_H
#define PS_JOB_KEYS_H

#include "roster.h"

#define PS_JOB_KEY_TOTAL_STEPS    "job/total_steps"
#define PS_JOB_KEY_TENSORS        "job/tensors"
#define PS_JOB_KEY_POLICY         "job/policy"
#define PS_JOB_KEY_POLICY_BATCHES "job/policy_batches"
#define PS_JOB_KEY_POLICY_END     "policy/end"
#define PS_JOB_KEY_TRAINER        "job/trainer"
#define PS_JOB_KEY_DATA           "job/data"
#define PS_JOB_KEY_FOLDER         "file/folder"
#define PS_JOB_KEY_INIT           "file/init"
#define PS_JOB_KEY_INIT_READ      "file/init/read"
#define PS_JOB_KEY_AGAIN          "server/0/again"
#define PS_JOB_KEY_NCCL_ID        "nccl/id"
#define PS_JOB_KEY_GLOO           "gloo/"
#define PS_JOB_KEY_TABLE          "table/"

typedef struct ps_job_key {
    char text[48];
} ps_job_key;

ps_job_key ps_job_key_shm(ps_role role, int rank);
ps_job_key ps_job_key_rows(int server);
ps_job_key ps_job_key_stats(int server);
ps_job_key ps_job_key_buffers(uint64_t n);
ps_job_key ps_job_key_reentry(uint64_t stretch);
ps_job_key ps_job_key_rest(uint64_t n);
/* k: from 1 on. */
ps_job_key ps_job_key_rest_piece(uint64_t n, uint32_t k);
/* down: what worker 0 gives to the rank; otherwise what the rank gives to worker 0. */
ps_job_key ps_job_key_piece(bool down, int rank);
ps_job_key ps_job_key_array(int worker);
ps_job_key ps_job_key_link(int worker, bool shm);

/* Of which other table the key is; 0: of none. */
uint32_t ps_job_key_table(const char *key);
/* Whether the key is the same with every table. A worker's thread may come to the next
 * table while another thread of it, or of another worker, uses such keys; and a server
 * has set its rows' before the first table. */
bool ps_job_key_outlives_tables(const char *key);

/* Whether the member may set the key. Keys that are not in the list are the workers'. */
bool ps_job_key_may_set(const char *key, ps_role role, int rank);
/* Whether that worker may set it, and no other. */
bool ps_job_key_is_of_worker(const char *key, int rank);

#endif
