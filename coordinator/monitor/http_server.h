/* A small HTTP server for reading: GET and HEAD of a few paths, on a thread of its own.
 * It keeps at most PS_HTTP_CONNECTIONS connections, each of which is closed after
 * PS_HTTP_SILENCE_S without a word, and PS_HTTP_MEMORY bytes of each. */
#ifndef PS_HTTP_SERVER_H
#define PS_HTTP_SERVER_H

#include "err.h"

enum { PS_HTTP_CONNECTIONS = 24, PS_HTTP_SILENCE_S = 10, PS_HTTP_MEMORY = 16384 };

typedef struct ps_http_answer {
    const char *type; // "text/html; charset=utf-8"; NULL: there is no such path
    char *body;       // owned: taken from the function that gives it (free())
    const char *text; // instead, borrowed for ever
} ps_http_answer;

/* Called by the server's thread. An error is answered with 500 and its message. */
typedef ps_err ps_http_get(void *ctx, const char *path, ps_http_answer *out);

typedef struct ps_http_options {
    const char *address; // to bind on: an IPv4 or IPv6 address
    int port;            // 0: any that is free
    ps_http_get *get;
    void *ctx;
} ps_http_options;

typedef struct ps_http_server ps_http_server;

/* NET says why the address cannot be bound; UNSUPPORTED: built without libmicrohttpd.
 * Bound to a loopback address, the server answers only requests for this host's own
 * names: so that no page of another site can read it (DNS rebinding). */
ps_err ps_http_server_start(const ps_http_options *options, ps_http_server **out);
int ps_http_server_port(const ps_http_server *server);
void ps_http_server_stop(ps_http_server **server); // NULL inside: nothing

#endif
