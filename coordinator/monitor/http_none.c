/* The HTTP server of a build without libmicrohttpd. */
#include "http_server.h"

#include <stddef.h>

ps_err ps_http_server_start(const ps_http_options *options, ps_http_server **out)
{
    *out = NULL;
    return ps_err_set(PS_ERR_UNSUPPORTED,
                      "this build has no page, no /metrics and no --serve: "
                      "install "
                      "libmicrohttpd-dev (deploy/packages build) and build again");
}

ps_err ps_http_server_run(ps_http_server *server, int timeout_ms)
{
    return PS_ERR_UNSUPPORTED;
}

int ps_http_server_port(const ps_http_server *server)
{
    return 0;
}

void ps_http_server_stop(ps_http_server **server)
{
    *server = NULL;
}
