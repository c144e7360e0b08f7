/* The HTTP server by GNU libmicrohttpd (https://www.gnu.org/software/libmicrohttpd). */
#include "http_server.h"

#include <microhttpd.h>
#include <netdb.h>
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

#include "loopback.h"
#include "mem.h"

struct ps_http_server {
    struct MHD_Daemon *daemon;
    ps_http_get *get;
    void *ctx;
    bool loopback; // bound only to this host's own addresses
    int port;
};

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
        MHD_add_response_header(r, "Allow", "GET, HEAD");
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

static enum MHD_Result http_fail(struct MHD_Connection *c)
{
    ps_http_answer a = {.type = "text/plain; charset=utf-8"};
    a.body = strdup(ps_err_message());
    return a.body ? http_send_answer(c, MHD_HTTP_INTERNAL_SERVER_ERROR, &a) : MHD_NO;
}

static enum MHD_Result http_on_request(void *ctx, struct MHD_Connection *c,
                                       const char *path, const char *method,
                                       const char *version, const char *upload,
                                       size_t *upload_bytes, void **seen)
{
    static int headers_read;
    const ps_http_server *s = ctx;
    ps_http_answer a = {0};
    (void)version;
    (void)upload;
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return http_refuse(c, MHD_HTTP_METHOD_NOT_ALLOWED,
                           "only GET: nothing can be set\n");
    if (!*seen) { // the first call of a request has the headers alone
        *seen = &headers_read;
        return MHD_YES;
    }
    if (*upload_bytes > 0) return MHD_NO;
    const char *host = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Host");
    if (s->loopback && host && !is_own_name(host))
        return http_refuse(c, MHD_HTTP_FORBIDDEN,
                           "ask for localhost: this page is only for its own host\n");
    if (s->get(s->ctx, path, &a) != PS_OK) return http_fail(c);
    if (!a.type)
        return http_refuse(c, MHD_HTTP_NOT_FOUND,
                           "there are /, /metrics, /status.json and /targets.json\n");
    return http_send_answer(c, MHD_HTTP_OK, &a);
}

/* Binds and listens: *fd is owned by the caller; *port is the one that it got. */
static ps_err listen_at(const char *address, int port, int *fd, int *bound)
{
    char service[16];
    struct addrinfo *found = NULL;
    struct sockaddr_storage own;
    socklen_t bytes = sizeof own;
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_PASSIVE,
                                   .ai_socktype = SOCK_STREAM};
    const int yes = 1;
    snprintf(service, sizeof service, "%d", port);
    if (getaddrinfo(address, service, &hints, &found) != 0)
        return ps_err_set(PS_ERR_NET, "metrics.bind: %s is not an address", address);
    *fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool ok = *fd >= 0 &&
              setsockopt(*fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
              bind(*fd, found->ai_addr, found->ai_addrlen) == 0 && listen(*fd, 64) == 0 &&
              getsockname(*fd, (struct sockaddr *)&own, &bytes) == 0;
    freeaddrinfo(found);
    if (!ok)
        return ps_err_errno(PS_ERR_NET, "cannot listen on %s port %d", address, port);
    const bool v6 = own.ss_family == AF_INET6;
    *bound = ntohs(v6 ? ((struct sockaddr_in6 *)&own)->sin6_port
                      : ((struct sockaddr_in *)&own)->sin_port);
    return PS_OK;
}

/* Signals are blocked in its thread: the program handles them elsewhere. */
static struct MHD_Daemon *start_daemon(ps_http_server *s, int fd)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    struct MHD_Daemon *d = MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL, 0, NULL, NULL, http_on_request, s,
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
    PS_TRY(ps_mem_zalloc(out, 1, sizeof **out, "the HTTP server"));
    ps_http_server *s = *out;
    s->get = o->get;
    s->ctx = o->ctx;
    s->loopback = ps_net_is_loopback(o->address);
    ps_err err = listen_at(o->address, o->port, &fd, &s->port);
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
