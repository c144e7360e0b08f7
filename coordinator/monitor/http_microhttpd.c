/* The HTTP server by GNU libmicrohttpd (https://www.gnu.org/software/libmicrohttpd). */
#include "http_server.h"

#include <microhttpd.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "clock.h"
#include "loopback.h"
#include "mem.h"

typedef struct connection {
    int fd;            // -1: a free place
    bool cut;          // it is being closed
    uint64_t begun_ns; // its request, or the silence before it
    uint64_t heard_ns; // the last part of it
} connection;

struct ps_http_server {
    struct MHD_Daemon *daemon;
    ps_http_options o;
    bool loopback; // bound only to this host's own addresses
    int port;
    connection connections[PS_HTTP_CONNECTIONS];
};

enum { SPARE = 4 };      // of the connections, for those that come
enum { BACKLOG = 1024 }; // in the system's queue, most of them silent

enum { CONTENT_TOO_LARGE = 413 }; // older libraries have another name for it

typedef struct request {
    char *bytes;    // (room)
    size_t n, room; // n + 1 at least, or none
    bool too_long;
} request;

/* --- connections -------------------------------------------------------------------- */

/* The place of a descriptor; of -1 a free one. NULL: there is none. */
static connection *http_find(ps_http_server *s, int fd)
{
    for (int i = 0; i < PS_HTTP_CONNECTIONS; i++)
        if (s->connections[i].fd == fd) return &s->connections[i];
    return NULL;
}

static int http_fd_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    return i ? i->connect_fd : -1;
}

/* libmicrohttpd closes it once it finds that nothing more will come. */
static void http_cut(connection *c)
{
    c->cut = true;
    shutdown(c->fd, SHUT_RDWR);
}

/* While few places are free, the longest silence ends. */
static void http_make_room(ps_http_server *s)
{
    int n_free = 0;
    connection *silent = NULL;
    for (int i = 0; i < PS_HTTP_CONNECTIONS; i++) {
        connection *c = &s->connections[i];
        n_free += c->fd < 0 || c->cut;
        if (c->fd >= 0 && !c->cut && (!silent || c->heard_ns < silent->heard_ns))
            silent = c;
    }
    if (n_free < SPARE) http_cut(silent);
}

static void http_on_connection(void *ctx, struct MHD_Connection *c, void **socket_context,
                               enum MHD_ConnectionNotificationCode code)
{
    ps_http_server *s = ctx;
    const bool begins = code == MHD_CONNECTION_NOTIFY_STARTED;
    const int fd = http_fd_of(c);
    const uint64_t now_ns = ps_clock_ns();
    connection *place = http_find(s, begins ? -1 : fd);
    if (place) *place = (connection){begins ? fd : -1, false, now_ns, now_ns};
    if (begins) http_make_room(s);
}

/* begins: a request is over, and the next one begins. */
static void http_note_heard(ps_http_server *s, struct MHD_Connection *c, bool begins)
{
    connection *place = http_find(s, http_fd_of(c));
    if (!place) return;
    place->heard_ns = ps_clock_ns();
    if (begins) place->begun_ns = place->heard_ns;
}

/* --- requests ----------------------------------------------------------------------- */

/* "localhost:9100", "127.0.0.1:9100", "[::1]:9100": a name of only this host. */
static bool is_own_name(const char *host)
{
    char name[PS_LOOPBACK_HOST_MAX];
    const bool v6 = host[0] == '[';
    host += v6;
    const size_t n = strcspn(host, v6 ? "]" : ":");
    if (n >= sizeof name) return false;
    memcpy(name, host, n);
    name[n] = '\0';
    return strcasecmp(name, "localhost") == 0 || ps_net_is_loopback(name);
}

/* NULL: out of memory; the connection is closed. */
static struct MHD_Response *response_of(ps_http_answer *a)
{
    const char *text = a->body ? a->body : a->text;
    void *bytes = (void *)(uintptr_t)text;
    struct MHD_Response *r = MHD_create_response_from_buffer(
        strlen(text), bytes, a->body ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
    if (!r) {
        free(a->body);
        return NULL;
    }
    MHD_add_response_header(r, "Content-Type", a->type);
    MHD_add_response_header(r, "Cache-Control", "no-store");
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    // The page has all of its style and script inside, and may ask its own server only.
    MHD_add_response_header(r, "Content-Security-Policy",
                            "default-src 'none'; style-src 'unsafe-inline'; script-src "
                            "'unsafe-inline'; connect-src 'self'; img-src data:; "
                            "base-uri 'none'; form-action 'none'; "
                            "frame-ancestors 'none'");
    return r;
}

static enum MHD_Result http_send_answer(struct MHD_Connection *c, unsigned code,
                                        ps_http_answer *a)
{
    struct MHD_Response *r = response_of(a);
    if (!r) return MHD_NO;
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(r, "Allow", a->allow);
    enum MHD_Result sent = MHD_queue_response(c, code, r);
    MHD_destroy_response(r);
    return sent;
}

static enum MHD_Result http_refuse(struct MHD_Connection *c, unsigned code,
                                   const char *text)
{
    ps_http_answer a = {.type = "text/plain; charset=utf-8", .text = text};
    return http_send_answer(c, code, &a);
}

static enum MHD_Result http_fail(struct MHD_Connection *c, unsigned code)
{
    ps_http_answer a = {.type = "text/plain; charset=utf-8"};
    if (asprintf(&a.body, "%s\n", ps_err_message()) < 0) return MHD_NO;
    return http_send_answer(c, code, &a);
}

static enum MHD_Result http_refuse_method(const ps_http_server *s,
                                          struct MHD_Connection *c)
{
    ps_http_answer a = {.type = "text/plain; charset=utf-8",
                        .allow = s->o.post ? "GET, HEAD, POST" : "GET, HEAD",
                        .text = s->o.post ? "only GET and POST\n"
                                          : "only GET: nothing can be set\n"};
    return http_send_answer(c, MHD_HTTP_METHOD_NOT_ALLOWED, &a);
}

static enum MHD_Result http_refuse_long(const ps_http_server *s, struct MHD_Connection *c)
{
    ps_http_answer a = {.type = "text/plain; charset=utf-8"};
    if (asprintf(&a.body, "a body has at most %zu bytes\n", s->o.body_max) < 0)
        return MHD_NO;
    return http_send_answer(c, CONTENT_TOO_LARGE, &a);
}

static const char *http_header(struct MHD_Connection *c, const char *name)
{
    return MHD_lookup_connection_value(c, MHD_HEADER_KIND, name);
}

/* A name of another host: a page of another site asks (DNS rebinding). */
static bool asks_for_another(const ps_http_server *s, struct MHD_Connection *c)
{
    const char *host = http_header(c, "Host");
    return s->loopback && host && !is_own_name(host);
}

/* What is too long is read, and forgotten: a client that still sends reads no answer. */
static enum MHD_Result http_take_body(const ps_http_server *s, request *r,
                                      const char *upload, size_t *n)
{
    const size_t more = *n;
    *n = 0;
    r->too_long = r->too_long || more > s->o.body_max - r->n;
    if (r->too_long) return MHD_YES;
    if (r->n + more >= r->room) { // doubled: it comes in small pieces
        const size_t room = 2 * (r->n + more) + 1;
        char *grown = realloc(r->bytes, room);
        if (!grown) return MHD_NO;
        r->bytes = grown;
        r->room = room;
    }
    memcpy(r->bytes + r->n, upload, more);
    r->n += more;
    r->bytes[r->n] = '\0';
    return MHD_YES;
}

static enum MHD_Result http_answer_post(const ps_http_server *s, struct MHD_Connection *c,
                                        const char *path, const request *r)
{
    const char *type = http_header(c, "Content-Type");
    ps_http_answer a = {0};
    const ps_http_body body = {.path = path,
                               .type = type ? type : "",
                               .bytes = r->bytes ? r->bytes : "",
                               .n = r->n};
    if (r->too_long) return http_refuse_long(s, c);
    if (s->o.post(s->o.ctx, &body, &a) != PS_OK)
        return http_fail(c, MHD_HTTP_BAD_REQUEST);
    return a.type ? http_send_answer(c, MHD_HTTP_OK, &a)
                  : http_refuse(c, MHD_HTTP_NOT_FOUND, s->o.paths);
}

static enum MHD_Result http_on_post(const ps_http_server *s, struct MHD_Connection *c,
                                    const char *path, const char *upload, size_t *n,
                                    void **seen)
{
    if (!*seen) {
        const char *length = http_header(c, "Content-Length");
        // At once: who says so early need not send it.
        if (length && strtoull(length, NULL, 10) > s->o.body_max)
            return http_refuse_long(s, c);
        *seen = calloc(1, sizeof(request));
        return *seen ? MHD_YES : MHD_NO;
    }
    return *n > 0 ? http_take_body(s, *seen, upload, n)
                  : http_answer_post(s, c, path, *seen);
}

static enum MHD_Result http_on_get(const ps_http_server *s, struct MHD_Connection *c,
                                   const char *path, size_t upload_bytes, void **seen)
{
    ps_http_answer a = {0};
    if (!*seen) { // the first call of a request has the headers alone
        *seen = calloc(1, sizeof(request));
        return *seen ? MHD_YES : MHD_NO;
    }
    if (upload_bytes > 0) return MHD_NO;
    if (s->o.get(s->o.ctx, path, &a) != PS_OK)
        return http_fail(c, MHD_HTTP_INTERNAL_SERVER_ERROR);
    return a.type ? http_send_answer(c, MHD_HTTP_OK, &a)
                  : http_refuse(c, MHD_HTTP_NOT_FOUND, s->o.paths);
}

static enum MHD_Result http_on_request(void *ctx, struct MHD_Connection *c,
                                       const char *path, const char *method,
                                       const char *version, const char *upload,
                                       size_t *upload_bytes, void **seen)
{
    ps_http_server *s = ctx;
    const bool post = s->o.post && strcmp(method, "POST") == 0;
    http_note_heard(s, c, false);
    if (!post && strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return http_refuse_method(s, c);
    if (asks_for_another(s, c))
        return http_refuse(c, MHD_HTTP_FORBIDDEN,
                           "ask for localhost: this page is only for its own host\n");
    return post ? http_on_post(s, c, path, upload, upload_bytes, seen)
                : http_on_get(s, c, path, *upload_bytes, seen);
}

/* A request is over: its connection's next one begins. */
static void http_on_completed(void *ctx, struct MHD_Connection *c, void **seen,
                              enum MHD_RequestTerminationCode code)
{
    ps_http_server *s = ctx;
    request *r = *seen;
    if (r) free(r->bytes);
    free(r);
    *seen = NULL;
    http_note_heard(s, c, true);
}

/* Those that send a little now and then are never silent. */
static void http_cut_slow(ps_http_server *s)
{
    const double most = s->o.request_s > 0 ? s->o.request_s : PS_HTTP_REQUEST_S;
    for (int i = 0; i < PS_HTTP_CONNECTIONS; i++) {
        connection *c = &s->connections[i];
        if (c->fd >= 0 && ps_clock_seconds_since(c->begun_ns) > most) http_cut(c);
    }
}

ps_err ps_http_server_run(ps_http_server *s, int timeout_ms)
{
    if (MHD_run_wait(s->daemon, timeout_ms) != MHD_YES)
        return ps_err_set(PS_ERR_NET, "libmicrohttpd cannot go on");
    http_cut_slow(s);
    return PS_OK;
}

/* --- beginning and end -------------------------------------------------------------- */

/* Silent ones stay in the system's queue: a connection that comes has sent something, and
 * it is read before others take its place, however slow its client is to begin. */
static bool http_listen(int fd)
{
    const int silence_s = PS_HTTP_SILENCE_S;
    return setsockopt(fd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &silence_s, sizeof silence_s) ==
               0 &&
           listen(fd, BACKLOG) == 0;
}

/* Binds and listens: *fd is owned by the caller; *port is the one that it got. */
static ps_err listen_at(const ps_http_options *o, int *fd, int *bound)
{
    char service[16];
    struct addrinfo *found = NULL;
    struct sockaddr_storage own;
    socklen_t bytes = sizeof own;
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_PASSIVE,
                                   .ai_socktype = SOCK_STREAM};
    const int yes = 1;
    snprintf(service, sizeof service, "%d", o->port);
    if (getaddrinfo(o->address, service, &hints, &found) != 0)
        return ps_err_set(PS_ERR_NET, "%s: %s is not an address", o->bind_key,
                          o->address);
    *fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool ok = *fd >= 0 &&
              setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
              bind(*fd, found->ai_addr, found->ai_addrlen) == 0 && http_listen(*fd) &&
              getsockname(*fd, (struct sockaddr *)&own, &bytes) == 0;
    freeaddrinfo(found);
    if (!ok)
        return ps_err_errno(PS_ERR_NET, "cannot listen on %s port %d", o->address,
                            o->port);
    const bool v6 = own.ss_family == AF_INET6;
    *bound = ntohs(v6 ? ((struct sockaddr_in6 *)&own)->sin6_port
                      : ((struct sockaddr_in *)&own)->sin_port);
    return PS_OK;
}

/* Signals are blocked in its thread: the program handles them elsewhere. */
static struct MHD_Daemon *start_daemon(ps_http_server *s, int fd)
{
    const unsigned mode =
        s->o.post ? MHD_USE_EPOLL : MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    struct MHD_Daemon *d = MHD_start_daemon(
        mode, 0, NULL, NULL, http_on_request, s, MHD_OPTION_NOTIFY_COMPLETED,
        http_on_completed, s, MHD_OPTION_NOTIFY_CONNECTION, http_on_connection, s,
        MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)PS_HTTP_CONNECTIONS, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)PS_HTTP_SILENCE_S, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)PS_HTTP_MEMORY, MHD_OPTION_END);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return d;
}

ps_err ps_http_server_start(const ps_http_options *o, ps_http_server **out)
{
    int fd = -1;
    PS_TRY(PS_NEW(out, 1, "the HTTP server"));
    ps_http_server *s = *out;
    s->o = *o;
    s->loopback = ps_net_is_loopback(o->address);
    for (int i = 0; i < PS_HTTP_CONNECTIONS; i++)
        s->connections[i].fd = -1;
    ps_err err = listen_at(o, &fd, &s->port);
    if (err == PS_OK) {
        s->daemon = start_daemon(s, fd);
        if (!s->daemon) err = ps_err_set(PS_ERR_NET, "libmicrohttpd cannot start");
    }
    if (err == PS_OK) return PS_OK;
    if (fd >= 0) close(fd);
    free(s);
    *out = NULL;
    return err;
}

int ps_http_server_port(const ps_http_server *s)
{
    return s->port;
}

void ps_http_server_stop(ps_http_server **server)
{
    if (!*server) return;
    MHD_stop_daemon((*server)->daemon); // closes the socket too
    free(*server);
    *server = NULL;
}
