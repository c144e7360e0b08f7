/* A small HTTP server: GET and HEAD of a few paths, on a thread of its own; or also POST,
 * by the thread that calls ps_http_server_run. It keeps at most PS_HTTP_CONNECTIONS
 * connections, each of which is closed after PS_HTTP_SILENCE_S without a word, and
 * PS_HTTP_MEMORY bytes of each, beside a body. Idle ones keep nobody out: one that has
 * sent nothing yet is not among them (the system keeps it for about as long), and once
 * there are nearly as many, each new one ends the one that has been silent longest. */
#ifndef PS_HTTP_SERVER_H
#define PS_HTTP_SERVER_H

#include <stddef.h>

#include "err.h"

enum { PS_HTTP_CONNECTIONS = 24, PS_HTTP_SILENCE_S = 10, PS_HTTP_MEMORY = 16384 };
/* With POST: a request that has not come as a whole after this long is cut off. */
enum { PS_HTTP_REQUEST_S = 30 };

typedef struct ps_http_answer {
    const char *type;  // "text/html; charset=utf-8"; NULL: there is no such path
    char *body;        // owned: taken from the function that gives it (free())
    const char *text;  // instead, borrowed for ever
    const char *allow; // of 405: what may be asked; borrowed for ever
} ps_http_answer;

/* Called by the server's thread. An error is answered with 500 and its message. */
typedef ps_err ps_http_get(void *ctx, const char *path, ps_http_answer *out);

/* A request with a body: of that path and Content-Type ("" where there is none),
 * borrowed. An error is answered with 400 and its message. */
typedef struct ps_http_body {
    const char *path, *type, *bytes; // bytes: followed by a NUL
    size_t n;
} ps_http_body;

typedef ps_err ps_http_post(void *ctx, const ps_http_body *body, ps_http_answer *out);

typedef struct ps_http_options {
    const char *address; // to bind on: an IPv4 or IPv6 address
    int port;            // 0: any that is free
    ps_http_get *get;
    ps_http_post *post;           // NULL: GET and HEAD alone
    int request_s;                // 0: PS_HTTP_REQUEST_S
    size_t body_max;              // of a body in bytes; a longer one is answered with 413
    const char *bind_key, *paths; // for messages: what sets the address; what there is
    void *ctx;
} ps_http_options;

typedef struct ps_http_server ps_http_server;

/* NET says why the address cannot be bound; UNSUPPORTED: built without libmicrohttpd.
 * Bound to a loopback address, the server answers only requests for this host's own
 * names: so that no page of another site can read it (DNS rebinding). */
ps_err ps_http_server_start(const ps_http_options *options, ps_http_server **out);
/* With POST: answers what has come, and waits up to that long for more. NET. */
ps_err ps_http_server_run(ps_http_server *server, int timeout_ms);
int ps_http_server_port(const ps_http_server *server);
void ps_http_server_stop(ps_http_server **server); // NULL inside: nothing

#endif
