#include "net.h"

#include <dirent.h>
#include <dlfcn.h>
#include <netdb.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#include "check.h"
#include "interrupt.h"
#include "zsock.h"

static const ps_deadline now = {0};

static ps_deadline soon(void)
{
    return ps_deadline_in_ms(60000);
}

/* A name that its host's DNS learns while we ask; one whose name servers are down; one
 * whose name servers are down after their first answer. */
static atomic_int lookups_until_known, lookups_answered;
static sem_t lookup_begun, name_servers;

int getaddrinfo(const char *restrict node, const char *restrict service,
                const struct addrinfo *restrict hints, struct addrinfo **restrict found)
{
    static int (*real)(const char *, const char *, const struct addrinfo *,
                       struct addrinfo **);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
    if (hints && hints->ai_flags & AI_NUMERICHOST) // no name server is asked
        return real(node, service, hints, found);
    if (node && strcmp(node, "answered-once") == 0 &&
        atomic_fetch_add(&lookups_answered, 1) == 0)
        return EAI_NONAME;
    if (node && (!strcmp(node, "never-answered") || !strcmp(node, "answered-once"))) {
        sem_post(&lookup_begun);
        sem_wait(&name_servers);
        return EAI_AGAIN;
    }
    if (!node || strcmp(node, "comes-later") != 0)
        return real(node, service, hints, found);
    return atomic_fetch_sub(&lookups_until_known, 1) > 0
               ? EAI_NONAME
               : real("127.0.0.1", service, hints, found);
}

TEST(loopback_by_interface_and_address)
{
    char address[PS_ADDRESS_MAX];
    assert_ok(ps_net_interface_address("lo", address));
    assert_string_equal(address, "127.0.0.1");
    assert_ok(ps_net_interface_address("127.0.0.1", address));
    assert_string_equal(address, "127.0.0.1");
    assert_ok(ps_net_route_address("127.0.0.1", now, address));
    assert_string_equal(address, "127.0.0.1");
}

/* A bare root has no /etc/hosts, and a name server need not know the name. */
TEST(localhost_is_the_loopback)
{
    char address[PS_ADDRESS_MAX];
    if (ps_net_route_address("localhost", ps_deadline_in_ms(5000), address) != PS_OK) {
        print_message("skipped: %s\n", ps_err_message());
        skip();
    }
    assert_true(ps_net_is_loopback(address));
}

TEST(prefixes_may_mean_the_loopback)
{
    char address[PS_ADDRESS_MAX];
    assert_ok(ps_net_interface_address("lo*", address));
    assert_string_equal(address, "127.0.0.1");
    assert_error(ps_net_interface_address("l*o", address), PS_ERR_NET,
                 "\"l*o\" is not a name, a prefix (eth*)");
}

TEST(unknown_interface_lists_those_there_are)
{
    char address[PS_ADDRESS_MAX];
    assert_error(ps_net_interface_address("nonesuch7", address), PS_ERR_NET,
                 "\"nonesuch7\"");
    assert_non_null(strstr(ps_err_message(), "lo (127.0.0.1)"));
}

TEST(default_route_gives_an_address)
{
    char address[PS_ADDRESS_MAX];
    ps_net_default_address(address);
    assert_true(ps_net_is_literal(address));
}

TEST(tells_loopback_and_literals)
{
    assert_true(ps_net_is_loopback("127.0.1.1"));
    assert_true(ps_net_is_loopback("::1"));
    assert_false(ps_net_is_loopback("10.0.0.1"));
    assert_true(ps_net_is_literal("10.0.0.1"));
    assert_true(ps_net_is_literal("2001:db8::1"));
    assert_false(ps_net_is_literal("node-7"));
    char endpoint[PS_ENDPOINT_MAX];
    ps_net_endpoint("10.0.0.7", 5000, endpoint, sizeof endpoint);
    assert_string_equal(endpoint, "tcp://10.0.0.7:5000");
    ps_net_endpoint("2001:db8::1", 5000, endpoint, sizeof endpoint);
    assert_string_equal(endpoint, "tcp://[2001:db8::1]:5000");
}

TEST(names_that_do_not_resolve_say_so)
{
    char found[4][PS_ADDRESS_MAX];
    int n;
    assert_error(ps_net_resolve("no-such-host.invalid", soon(), found, 4, &n), PS_ERR_NET,
                 "no-such-host.invalid");
}

/* Looks for an address that there will not be, and expects these words. A busy machine
 * may not ask in time: then it gets more. Returns how often it asked. */
static int expect_timeout(const char *name, const char *words)
{
    char address[PS_ADDRESS_MAX];
    enum { NEVER = 1 << 20 };
    bool said = false;
    for (int ms = 250; !said && ms < 20000; ms *= 4) {
        lookups_until_known = NEVER;
        lookups_answered = 0;
        assert_int_equal(ps_net_route_address(name, ps_deadline_in_ms(ms), address),
                         PS_ERR_TIMEOUT);
        said = strstr(ps_err_message(), words) != NULL;
    }
    if (!said) fail_msg("%s", ps_err_message());
    return NEVER - atomic_load(&lookups_until_known);
}

TEST(names_that_do_not_resolve_yet_are_awaited)
{
    char address[PS_ADDRESS_MAX];
    lookups_until_known = 2;
    assert_ok(ps_net_route_address("comes-later", ps_deadline_in_ms(20000), address));
    assert_string_equal(address, "127.0.0.1");
    int asked = 0;
    for (int i = 0; i < 5 && asked < 2; i++)
        asked = expect_timeout("comes-later", "comes-later: the name does not resolve");
    assert_true(asked >= 2);
}

TEST(name_servers_that_are_down_hold_nobody)
{
    char found[4][PS_ADDRESS_MAX];
    int n, fd;
    expect_timeout("never-answered", "never-answered: no name server has answered");
    assert_int_equal(
        ps_net_resolve("never-answered", ps_deadline_in_ms(50), found, 4, &n),
        PS_ERR_TIMEOUT);
    assert_int_equal(
        ps_net_connect("never-answered", 1, ps_deadline_in_ms(50), &fd, NULL),
        PS_ERR_TIMEOUT);
    // The reason is the answer that there was, not the attempt that the deadline cut.
    expect_timeout("answered-once", "answered-once: the name does not resolve");
    for (int i = 0; i < 8; i++) // for clients that still ask
        sem_post(&name_servers);
}

static int port_of(const char *endpoint)
{
    int port = 0;
    for (const char *p = strrchr(endpoint, ':') + 1; *p; p++)
        port = port * 10 + *p - '0';
    return port;
}

/* Returns how many threads of the process have the policy SCHED_BATCH. */
static int count_batch_threads(void)
{
    int n = 0;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (struct dirent *d; (d = readdir(tasks));)
        n += d->d_name[0] != '.' && sched_getscheduler(atoi(d->d_name)) == SCHED_BATCH;
    closedir(tasks);
    return n;
}

TEST(a_patient_context_waits_for_its_turn)
{
    const struct sched_param zero = {0};
    if (access("/proc/self/task", R_OK) != 0) {
        print_message("skipped: /proc is not mounted\n");
        skip();
    }
    if (sched_getscheduler(0) != SCHED_OTHER)
        skip(); // the tests were started under another policy
    if (sched_setscheduler(0, SCHED_BATCH, &zero) != 0) skip();
    assert_int_equal(sched_setscheduler(0, SCHED_OTHER, &zero), 0);
    for (int patient = 0; patient < 2; patient++) {
        void *context, *socket;
        assert_ok(ps_zsock_context(2, 16, patient, &context));
        const ps_zsock_options o = {.type = ZMQ_DEALER};
        assert_ok(ps_zsock_open(context, &o, &socket));       // starts threads
        const ps_deadline deadline = ps_deadline_in_ms(5000); // they set it late
        while (patient && count_batch_threads() < 2 && !ps_deadline_passed(deadline))
            usleep(1000);
        assert_int_equal(count_batch_threads() >= 2, patient);
        assert_int_equal(sched_getscheduler(0), SCHED_OTHER);
        ps_zsock_close(&socket);
        zmq_ctx_term(context);
    }
}

TEST(dials_what_listens_and_gives_up_on_what_does_not)
{
    void *context = zmq_ctx_new(), *router, *other;
    const ps_zsock_options o = {.type = ZMQ_ROUTER};
    const ps_curve trusted = {.insecure = true};
    char endpoint[PS_ENDPOINT_MAX], remote[PS_ADDRESS_MAX], local[PS_ADDRESS_MAX];
    assert_ok(ps_zsock_open(context, &o, &router));
    assert_ok(ps_zsock_bind(router, NULL, "tcp://127.0.0.1:0", endpoint));
    assert_int_equal(strncmp(endpoint, "tcp://127.0.0.1:", 16), 0); // not a mapped one
    int port = port_of(endpoint);
    assert_int_equal(ps_net_port_of(endpoint), port);
    ps_net_at_port("tcp://[fe80::1%eth0]:5000", 70, remote, sizeof remote);
    assert_string_equal(remote, "tcp://[fe80::1%eth0]:70");
    assert_ok(ps_net_dial("127.0.0.1", port, ps_deadline_in_ms(20000), remote, local));
    assert_string_equal(remote, "127.0.0.1");
    assert_string_equal(local, "127.0.0.1");
    assert_false(ps_net_refuses("127.0.0.1", port));
    assert_false(ps_net_refuses("localhost", port)); // a name

    assert_ok(ps_zsock_open(context, &o, &other));
    char again[PS_ENDPOINT_MAX];
    assert_error(ps_zsock_bind(other, NULL, endpoint, again), PS_ERR_NET, "in use");
    assert_non_null(strstr(ps_err_message(), endpoint));
    assert_error(ps_zsock_bind(other, &trusted, "tcp://192.0.2.77:5000", again),
                 PS_ERR_NET, "no interface");

    ps_zsock_close(&router);
    ps_zsock_close(&other);
    zmq_ctx_term(context);
    assert_int_equal(
        ps_net_dial("127.0.0.1", port, ps_deadline_in_ms(250), remote, local),
        PS_ERR_TIMEOUT);
    assert_non_null(strstr(ps_err_message(), "refused"));
    assert_true(ps_net_refuses("127.0.0.1", port));
    assert_false(ps_net_refuses("192.0.2.77", port)); // nobody says anything
}

TEST(messages_within_bounds)
{
    void *context = zmq_ctx_new(), *router, *dealer;
    const ps_zsock_options r = {.type = ZMQ_ROUTER, .max_message_bytes = 1000};
    const ps_zsock_options d = {
        .type = ZMQ_DEALER, .routing_id = "me", .routing_id_bytes = 2};
    char endpoint[PS_ENDPOINT_MAX];
    assert_ok(ps_zsock_open(context, &r, &router));
    assert_ok(ps_zsock_bind(router, NULL, "tcp://127.0.0.1:*", endpoint));
    assert_ok(ps_zsock_open(context, &d, &dealer));
    assert_ok(ps_zsock_connect(dealer, NULL, endpoint));

    zmq_msg_t parts[5];
    for (int i = 0; i < 5; i++)
        assert_ok(ps_zsock_msg_copy(&parts[i], "abc", 3));
    ps_deadline soon = ps_deadline_in_ms(20000);
    assert_ok(ps_zsock_send(dealer, soon, parts, 5));
    int n;
    assert_int_equal(ps_zsock_recv(router, soon, parts, 3, &n), PS_ERR_PROTOCOL);
    assert_int_equal(n, 0);

    assert_ok(ps_zsock_msg_copy(&parts[0], "abc", 3));
    assert_ok(ps_zsock_send(dealer, soon, parts, 1));
    assert_ok(ps_zsock_recv(router, soon, parts, 3, &n));
    assert_int_equal(n, 2); // nothing of the longer one was left over
    assert_memory_equal(zmq_msg_data(&parts[0]), "me", 2);
    ps_zsock_close_parts(parts, n);
    assert_ok(ps_zsock_recv(router, ps_deadline_in_ms(20), parts, 3, &n));
    assert_int_equal(n, 0);

    assert_ok(ps_zsock_msg_copy(&parts[0], "nobody", 6));
    assert_ok(ps_zsock_msg_copy(&parts[1], "x", 1));
    assert_int_equal(ps_zsock_send(router, soon, parts, 2), PS_ERR_PEER);
    ps_zsock_close(&router);
    ps_zsock_close(&dealer);
    zmq_ctx_term(context);
}

static void *interrupt_who_asks(void *arg)
{
    sem_wait(&lookup_begun);
    kill(getpid(), SIGINT);
    return arg;
}

/* This test is the last one: the process stays interrupted. */
TEST(a_signal_ends_looking_up_and_connecting)
{
    char remote[PS_ADDRESS_MAX], local[PS_ADDRESS_MAX];
    pthread_t thread;
    assert_ok(ps_interrupt_init());
    while (sem_trywait(&lookup_begun) == 0) // the tests before have asked
        ;
    assert_int_equal(pthread_create(&thread, NULL, interrupt_who_asks, NULL), 0);
    assert_int_equal(ps_net_dial("never-answered", 1, soon(), remote, local),
                     PS_ERR_INTERRUPTED);
    pthread_join(thread, NULL);
    assert_int_equal(ps_net_dial("192.0.2.77", 1, soon(), remote, local),
                     PS_ERR_INTERRUPTED);
    sem_post(&name_servers);
}

int main(void)
{
    sem_init(&lookup_begun, 0, 0);
    sem_init(&name_servers, 0, 0);
    return check_run(NULL, NULL);
}
