#include "reader_door.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "interrupt.h"
#include "mem.h"
#include "printable.h"

/* The greeting of ZMTP 3.0 (rfc.zeromq.org/spec/23) is signature, version, mechanism. The
 * first two are answered by all three. */
enum { GREETING = 12, AT_MECHANISM = 12, HEARD = 32, GREETING_MS = 1000 };

static const char NO_ANSWER[] =
    "who listens there does not answer: it is no pstrain job, or one with other keys";

/* What the other end says to a greeting: *n bytes. One that waits for more is told that
 * no more comes. */
static ps_err reader_door_hear(int fd, ps_deadline deadline, char heard[HEARD], size_t *n)
{
    static const char greeting[GREETING] = "\xff\0\0\0\0\0\0\0\x01\x7f\x03";
    const ps_deadline half = ps_deadline_in_ms(GREETING_MS / 2);
    const ps_deadline whole = ps_deadline_in_ms(GREETING_MS);
    const ps_deadline end = whole.at_ns < deadline.at_ns ? whole : deadline;
    ssize_t got = send(fd, greeting, GREETING, MSG_NOSIGNAL);
    *n = 0;
    while (got > 0 && *n < HEARD && (*n == 0 || heard[0] == greeting[0]) &&
           !ps_deadline_passed(end)) {
        struct pollfd item = {.fd = fd, .events = POLLIN};
        const ps_deadline next = ps_deadline_passed(half) ? end : half;
        PS_TRY(ps_interrupt_ask_hook());
        (void)poll(&item, 1, ps_deadline_left_ms(ps_interrupt_slice(next)));
        if (*n == 0 && ps_deadline_passed(half)) shutdown(fd, SHUT_WR);
        if (!item.revents) continue;
        got = recv(fd, heard + *n, HEARD - *n, 0);
        if (got > 0) *n += (size_t)got;
    }
    return PS_OK;
}

/* PEER: no job's door is there. TIMEOUT: nothing was said. */
static ps_err reader_door_judge(char heard[HEARD], size_t n, bool has_keys)
{
    char said[4 * HEARD + 8], text[HEARD + 1] = "";
    if (n == 0) return ps_err_set(PS_ERR_TIMEOUT, "%s", NO_ANSWER);
    memcpy(text, heard, n);
    ps_printable(text, said, sizeof said);
    if (text[0] != '\xff' || (n == HEARD && strcmp(text + AT_MECHANISM, "PLAIN") == 0))
        return ps_err_set(PS_ERR_PEER,
                          "who listens there is not the coordinator of a job: it says "
                          "\"%s\". Its port is that of psrun --port",
                          text[0] == '\xff' ? "PLAIN" : said);
    if (n < HEARD || has_keys == (strcmp(text + AT_MECHANISM, "CURVE") == 0))
        return PS_OK;
    return ps_err_set(PS_ERR_PEER, "the job has %s",
                      has_keys
                          ? "no keys: give none"
                          : "keys: give the folder that has worker.key (PS_CURVE_DIR)");
}

/* Where the door is. A file is read again each time: a job that was started again has
 * another one. */
static ps_err reader_door_find(const ps_reader_door *door, ps_deadline deadline,
                               char endpoint[PS_ENDPOINT_MAX])
{
    const ps_init_method *at = door->at;
    char remote[PS_ADDRESS_MAX], heard[HEARD];
    int fd;
    size_t n;
    ps_init_record record = {.port = at->port};
    if (at->is_file) PS_TRY(ps_init_file_read(at->path, &record));
    ps_err err = ps_net_connect(at->is_file ? record.address : at->host, record.port,
                                deadline, &fd, remote);
    if (err == PS_ERR_NET) {
        const ps_err_saved why = ps_err_save(err);
        err = ps_err_set(err, "%s: does the job run, with this port (psrun --port)?",
                         why.message);
    }
    PS_TRY(err);
    err = reader_door_hear(fd, deadline, heard, &n);
    close(fd);
    ps_net_endpoint(remote, record.port, endpoint, PS_ENDPOINT_MAX);
    return err == PS_OK ? reader_door_judge(heard, n, door->curve->on) : err;
}

static ps_err reader_door_read(const ps_control *c, ps_reader_pass *out)
{
    ps_mp_reader r;
    size_t bytes;
    ps_mp_reader_init(&r, c->value, c->bytes);
    const size_t items = ps_mp_read_array(&r, PS_CONTROL_DOOR_FRAME_MAX);
    const void *secret = ps_mp_read_bin(&r, &bytes, sizeof out->secret);
    if (r.failed || items < 2 || bytes != sizeof out->secret)
        return ps_err_set(PS_ERR_PROTOCOL, "a malformed answer to a reader");
    out->nonce = c->nonce;
    memcpy(&out->secret, secret, bytes);
    PS_TRY(PS_NEW(&out->endpoints, items - 1, "shards"));
    out->n = items - 1;
    for (size_t i = 0; i < out->n; i++)
        ps_mp_read_str(&r, out->endpoints[i], sizeof out->endpoints[i]);
    if (ps_mp_reader_end(&r)) return PS_OK;
    return ps_err_set(PS_ERR_PROTOCOL, "a malformed answer to a reader");
}

static ps_err reader_door_take(const ps_control *c, ps_reader_pass *out, bool *later)
{
    if (c->kind == PS_CONTROL_SERVERS) return reader_door_read(c, out);
    if (c->kind != PS_CONTROL_REFUSE)
        return ps_err_set(PS_ERR_PROTOCOL, "%s to a reader",
                          ps_control_kind_name(c->kind));
    *later = c->for_now == 1;
    return ps_err_set(PS_ERR_PEER, "%s", c->text);
}

static ps_err reader_door_talk(void *dealer, const char *job, ps_deadline deadline,
                               ps_reader_pass *out, bool *later)
{
    ps_control ask = {.kind = PS_CONTROL_READER}, answer;
    zmq_msg_t frame;
    int got = 0;
    ps_control_set_text(&ask, PS_VERSION);
    PS_TRY(ps_control_set_name(&ask, job));
    PS_TRY(ps_control_send(dealer, &ask));
    PS_TRY(ps_control_recv(dealer, deadline, &frame, &answer, &got));
    if (!got) {
        *later = true;
        return ps_err_set(PS_ERR_TIMEOUT, "%s", NO_ANSWER);
    }
    const ps_err err = reader_door_take(&answer, out, later);
    zmq_msg_close(&frame);
    return err;
}

ps_err ps_reader_door_ask(const ps_reader_door *door, ps_deadline deadline,
                          ps_reader_pass *out, bool *later)
{
    char endpoint[PS_ENDPOINT_MAX];
    ps_secret number;
    void *dealer;
    *out = (ps_reader_pass){0};
    *later = false;
    ps_err err = reader_door_find(door, deadline, endpoint);
    *later = err == PS_ERR_NET || err == PS_ERR_TIMEOUT || err == PS_ERR_IO ||
             (err == PS_ERR_PEER && door->at->is_file); // of a job before, it may be
    PS_TRY(err);
    PS_TRY(ps_curve_check_endpoint(door->curve, endpoint));
    PS_TRY(ps_secret_draw(&number));
    const ps_zsock_options o = {.type = ZMQ_DEALER,
                                .max_message_bytes = PS_CONTROL_DOOR_FRAME_MAX,
                                .routing_id = number.bytes,
                                .routing_id_bytes = sizeof number.bytes,
                                .curve = door->curve,
                                .peer = PS_ROLE_SERVER};
    PS_TRY(ps_zsock_open(door->zmq_context, &o, &dealer));
    err = ps_zsock_connect(dealer, door->curve, endpoint);
    if (err == PS_OK) err = reader_door_talk(dealer, door->job, deadline, out, later);
    ps_zsock_close(&dealer);
    if (err != PS_OK) ps_reader_pass_fini(out);
    return err;
}

void ps_reader_pass_fini(ps_reader_pass *pass)
{
    free(pass->endpoints);
    *pass = (ps_reader_pass){0};
}
