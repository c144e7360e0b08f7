/* The HTTP server with POST: what a client may send, how long it may take, and how many
 * there may be. */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "clock.h"
#include "http_server.h"

enum { BODY_MAX = 1 << 20, REQUEST_S = 1, PATIENCE_MS = 30000, MANY = 1000 };
enum { IDLE = 4 * PS_HTTP_CONNECTIONS };

static ps_http_server *server;
static pthread_t thread;
static atomic_bool stop;

static ps_err on_get(void *ctx, const char *path, ps_http_answer *out)
{
    if (strcmp(path, "/") == 0)
        *out = (ps_http_answer){.type = "text/plain", .text = "ok"};
    return PS_OK;
}

/* Says how long the body was; "no" is an error. */
static ps_err on_post(void *ctx, const ps_http_body *body, ps_http_answer *out)
{
    if (strcmp(body->path, "/length") != 0) return PS_OK;
    if (strlen(body->bytes) != body->n) return ps_err_set(PS_ERR_ARG, "zeros");
    if (strcmp(body->bytes, "no") == 0) return ps_err_set(PS_ERR_ARG, "why not");
    out->type = "text/plain";
    return asprintf(&out->body, "%zu %s", body->n, body->type) < 0 ? PS_ERR_NOMEM : PS_OK;
}

static void *serve(void *ctx)
{
    while (!stop)
        if (ps_http_server_run(ctx, 50) != PS_OK) abort();
    return NULL;
}

static int begin(void **state)
{
    const ps_http_options o = {.address = "127.0.0.1",
                               .get = on_get,
                               .post = on_post,
                               .request_s = REQUEST_S,
                               .body_max = BODY_MAX,
                               .bind_key = "address",
                               .paths = "there is /length\n"};
    if (ps_http_server_start(&o, &server) != PS_OK) return 1;
    return pthread_create(&thread, NULL, serve, server);
}

static int end(void **state)
{
    stop = true;
    pthread_join(thread, NULL);
    ps_http_server_stop(&server);
    return 0;
}

static int dial(bool wait)
{
    const struct sockaddr_in at = {.sin_family = AF_INET,
                                   .sin_port =
                                       htons((uint16_t)ps_http_server_port(server)),
                                   .sin_addr = {htonl(INADDR_LOOPBACK)}};
    const int fd = socket(AF_INET, SOCK_STREAM | (wait ? 0 : SOCK_NONBLOCK), 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&at, sizeof at) != 0 && wait)
        fail_msg("cannot connect");
    return fd;
}

static void send_all(int fd, const char *text, size_t n)
{
    while (n > 0) {
        const ssize_t sent = send(fd, text, n, MSG_NOSIGNAL);
        if (sent < 0) return; // the server does not want more
        text += sent;
        n -= (size_t)sent;
    }
}

/* Reads until the server closes. Returns the status, 0: there was none. */
static int read_status(int fd, char *text, size_t room)
{
    size_t n = 0;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    for (;;) {
        if (poll(&p, 1, PATIENCE_MS) != 1) fail_msg("no answer");
        const ssize_t got = recv(fd, text + n, room - 1 - n, 0);
        if (got <= 0) break;
        n += (size_t)got;
    }
    text[n] = '\0';
    close(fd);
    return strncmp(text, "HTTP/1.1 ", 9) == 0 ? atoi(text + 9) : 0;
}

static int ask(const char *request, size_t n, char *text, size_t room)
{
    const int fd = dial(true);
    send_all(fd, request, n);
    return read_status(fd, text, room);
}

#define HEAD(line, more)                                                                 \
    line " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" more "\r\n"

static void assert_answers(const char *request, int status, const char *words)
{
    char text[2048];
    assert_int_equal(ask(request, strlen(request), text, sizeof text), status);
    if (!strstr(text, words)) fail_msg("'%s' lacks '%s'", text, words);
}

TEST(what_is_asked_is_answered)
{
    assert_answers(
        HEAD("POST /length", "Content-Length: 3\r\nContent-Type: a/b\r\n") "abc", 200,
        "3 a/b");
    assert_answers(HEAD("POST /length", "Transfer-Encoding: chunked\r\n") "3\r\nabc\r\n"
                                                                          "2\r\nde\r\n"
                                                                          "0\r\n\r\n",
                   200, "5 ");
    assert_answers(HEAD("POST /length", "Content-Length: 0\r\n"), 200, "0 ");
    assert_answers(HEAD("POST /length", "Content-Length: 2\r\n") "no", 400, "why not\n");
    assert_answers(HEAD("POST /nowhere", "Content-Length: 0\r\n"), 404,
                   "there is /length");
    assert_answers(HEAD("GET /", ""), 200, "ok");
    assert_answers(HEAD("DELETE /", ""), 405, "Allow: GET, HEAD, POST");
    assert_answers("POST /length HTTP/1.1\r\nHost: other.example\r\nContent-Length: 0\r\n"
                   "Connection: close\r\n\r\n",
                   403, "localhost");
}

TEST(a_body_that_is_too_long_is_refused)
{
    static char huge[2 * BODY_MAX];
    char text[2048];
    // Before it is sent, where it says how long it is.
    assert_answers(HEAD("POST /length", "Content-Length: 1000000000000\r\n"), 413,
                   "at most 1048576 bytes");
    const int n =
        snprintf(huge, sizeof huge, "%s%x\r\n",
                 HEAD("POST /length", "Transfer-Encoding: chunked\r\n"), BODY_MAX + 1);
    memset(huge + n, 'x', BODY_MAX + 1);
    memcpy(huge + n + BODY_MAX + 1, "\r\n0\r\n\r\n", 7);
    assert_int_equal(ask(huge, (size_t)n + BODY_MAX + 8, text, sizeof text), 413);
}

/* A byte now and then: neither silent nor ever done. */
static void assert_cut_off(const char *begun)
{
    const uint64_t began = ps_clock_ns();
    const int fd = dial(true);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    char byte;
    send_all(fd, begun, strlen(begun));
    while (poll(&p, 1, 20) == 0) {
        send_all(fd, "x", 1);
        assert_true(ps_clock_seconds_since(began) < PATIENCE_MS / 1000);
    }
    while (recv(fd, &byte, 1, 0) > 0) // an answer may come first
        ;
    assert_true(ps_clock_seconds_since(began) > REQUEST_S);
    close(fd);
    assert_answers(HEAD("GET /", ""), 200, "ok");
}

TEST(a_slow_client_is_cut_off)
{
    assert_cut_off(
        "POST /length HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n");
    assert_cut_off("GET / HTTP/1.1\r\nHost: localhost\r\nX: ");
}

static void dial_many(int fds[MANY])
{
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max < MANY + 200 ? files.rlim_max : MANY + 200;
    setrlimit(RLIMIT_NOFILE, &files);
    for (int i = 0; i < MANY; i++)
        fds[i] = dial(false);
}

/* The server keeps a few; the others wait in the system's queue, or are not connected. */
TEST(a_thousand_connections_are_bounded)
{
    static int fds[MANY];
    dial_many(fds);
    assert_answers(HEAD("GET /", ""), 200, "ok"); // heard behind those in the queue
    const int next = dup(0);                      // descriptors of the server lie between
    assert_true(next < 0 || next <= MANY + PS_HTTP_CONNECTIONS + 32);
    close(next);
    for (int i = 0; i < MANY; i++)
        if (fds[i] >= 0) close(fds[i]);
    assert_answers(HEAD("GET /", ""), 200, "ok");
}

/* Each of them is connected once this returns, and has sent that. */
static void dial_idle(int fds[IDLE], const char *begun)
{
    for (int i = 0; i < IDLE; i++) {
        fds[i] = dial(true);
        send_all(fds[i], begun, strlen(begun));
    }
}

static void hang_up(const int fds[IDLE])
{
    for (int i = 0; i < IDLE; i++)
        close(fds[i]);
}

static void assert_idle_keep_nobody_out(void)
{
    static const char get[] = HEAD("GET /", "");
    char text[2048];
    int fds[IDLE];
    // Connected before the idle ones, and heard behind them.
    const int fd = dial(true);
    const uint64_t began = ps_clock_ns();
    dial_idle(fds, "");
    send_all(fd, get, strlen(get));
    assert_int_equal(read_status(fd, text, sizeof text), 200);
    assert_answers(get, 200, "ok");
    hang_up(fds);
    dial_idle(fds, "G");
    assert_answers(get, 200, "ok");
    assert_true(ps_clock_seconds_since(began) <
                PS_HTTP_SILENCE_S); // none ended by itself
    hang_up(fds);
}

TEST(idle_connections_keep_nobody_out)
{
    assert_idle_keep_nobody_out();
}

/* The page's server has a thread of its own. */
TEST(idle_connections_keep_nobody_from_the_page)
{
    ps_http_server *const with_post = server;
    const ps_http_options o = {
        .address = "127.0.0.1", .get = on_get, .bind_key = "address"};
    assert_ok(ps_http_server_start(&o, &server));
    assert_idle_keep_nobody_out();
    ps_http_server_stop(&server);
    server = with_post;
}

int main(void)
{
    return check_run(begin, end);
}
