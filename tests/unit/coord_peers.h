/* A coordinator of one server and two workers, and its peers: bare sockets for which the
 * test writes every message itself. A failure fails the test. */
#ifndef PS_TEST_COORD_PEERS_H
#define PS_TEST_COORD_PEERS_H

#include "control.h"
#include "coordinator.h"

enum { PEER_CONFIG_HASH = 0x12ab, PEER_PLAN_HASH = 0x34cd };

extern ps_coordinator *peer_coordinator; // of the test that runs
extern void *peer_context;
extern ps_curve peer_keys[PS_ROLE_COUNT];

/* A test with a coordinator, which setup makes. One that fails leaves sockets open, for
 * which the end of its context would wait: what it has stays. */
#define PEER_TEST_WITH(test, setup)                                                      \
    static void test##_body(void);                                                       \
    TEST_WITH(test, setup, peer_close)                                                   \
    {                                                                                    \
        test##_body();                                                                   \
        peer_passed = true;                                                              \
    }                                                                                    \
    static void test##_body(void)
#define PEER_TEST(test) PEER_TEST_WITH(test, peer_open)
int peer_open(void **state);
int peer_open_recovering(void **state); // members may join again
int peer_open_with_keys(void **state);  // the same, with peer_keys
int peer_close(void **state);
extern bool peer_passed;
/* Another coordinator; owned by the caller. */
ps_coordinator *peer_start_coordinator(int n_servers, int n_workers);

/* ---- sockets and messages ---- */

/* A DEALER socket; owned by the caller. monitor: of its connections; may be NULL. */
void *peer_connect(const char *endpoint, ps_zsock_options o, void **monitor);
/* A peer at the door; number tells their ids apart. */
void *peer_dial(uint8_t number);
/* Where the members are. */
void peer_endpoint_of_members(int port, char out[PS_ENDPOINT_MAX]);
/* A connection to the members' ROUTER with a secret, which may be wrong. room: how many
 * messages it takes before the test reads one; 0: any number. */
void *peer_dial_members(int port, const ps_secret *secret, unsigned link, int room,
                        void **monitor);

void peer_send_bytes(void *socket, const void *bytes, size_t n);
void peer_send(void *socket, const ps_control *c);
/* The next message. Its value is not kept. */
ps_control peer_answer(void *socket);
/* The next message of the kind; others are skipped. Its value is not kept. */
ps_control peer_await(void *socket, ps_control_kind kind);
/* The same; none that comes before is of the unwanted kind. */
ps_control peer_await_without(void *socket, ps_control_kind kind,
                              ps_control_kind unwanted);
void peer_assert_says(const char *text, const char *words);

/* ---- joining ---- */

/* A JOIN that fits the job; peer_send_join adds role and rank. */
ps_control peer_join_message(void);
void peer_send_join(void *socket, ps_control c, ps_role role, int rank);

typedef struct peer_admission {
    ps_secret secret;
    int port;
    uint64_t nonce;
} peer_admission;

/* Asks at the door and is admitted. */
peer_admission peer_ask_to_join(void *door, ps_role role, int rank);
/* Comes to the members' ROUTER and says HERE. */
void *peer_come(const peer_admission *a);

/* ---- a job that runs: server 0 and two workers ---- */

/* A test with three members that have joined; peer_close closes their sockets. In a
 * PEER_PATIENT_JOB_TEST no thread says that they are alive. */
#define PEER_JOB_TEST(test)         PEER_TEST_WITH(test, peer_open_job)
#define PEER_PATIENT_JOB_TEST(test) PEER_TEST_WITH(test, peer_open_patient_job)
int peer_open_job(void **state);
int peer_open_patient_job(void **state);
int peer_open_impatient_job(void **state); // 2 s of silence are death

extern peer_admission peer_admissions[3];
extern void *peer_sockets[3];
extern uint64_t peer_nonce;
/* The job lives: worker 1 (sockets[2]) can store a value, and all members can read it. */
void peer_assert_alive(void *sockets[3]);

#endif
