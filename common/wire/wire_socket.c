#include "wire_socket.h"

#include <errno.h>
#include <string.h>

/* Below this size libzmq hands out slices of its receive buffer, of any alignment. */
enum { OWN_BELOW = 16384 };

void ps_wire_id(uint32_t rank, const ps_secret *secret, uint8_t out[PS_WIRE_ID_BYTES])
{
    for (int i = 0; i < 4; i++)
        out[i] = (uint8_t)(rank >> (24 - 8 * i));
    memcpy(out + 4, secret->bytes, sizeof secret->bytes);
}

static uint32_t wire_id_number(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

int64_t ps_wire_id_rank(const void *id, size_t bytes, const ps_secret *secrets,
                        uint32_t n)
{
    const uint8_t *p = id;
    if (bytes != PS_WIRE_ID_BYTES) return -1;
    const uint32_t rank = wire_id_number(p);
    if (rank >= n || !ps_secret_is(&secrets[rank], p + 4, bytes - 4)) return -1;
    return rank;
}

void ps_wire_reader_id(const ps_secret *secret, uint64_t number,
                       uint8_t out[PS_WIRE_READER_ID_BYTES])
{
    ps_wire_id(PS_WIRE_READER, secret, out);
    memcpy(out + PS_WIRE_ID_BYTES, &number, sizeof number);
}

bool ps_wire_id_is_readers(const void *id, size_t bytes, const ps_secret *secret)
{
    const uint8_t *p = id;
    return bytes == PS_WIRE_READER_ID_BYTES &&
           ps_secret_is(secret, p + 4, sizeof secret->bytes);
}

int64_t ps_wire_id_shard(const void *id, size_t bytes, const ps_secret *secret)
{
    const uint8_t *p = id;
    const bool is =
        bytes == PS_WIRE_ID_BYTES && ps_secret_is(secret, p + 4, sizeof secret->bytes);
    return is ? (int64_t)wire_id_number(p) : -1;
}

static ps_err wire_socket_failure(const char *what)
{
    return ps_err_set(PS_ERR_NET, "%s: %s", what, zmq_strerror(zmq_errno()));
}

void ps_wire_frames_open(ps_wire_frames *f)
{
    zmq_msg_init(&f->id);
    zmq_msg_init(&f->header);
    zmq_msg_init(&f->payload);
    f->n = 0;
    f->has_payload = false;
}

void ps_wire_frames_close(ps_wire_frames *f)
{
    zmq_msg_close(&f->id);
    zmq_msg_close(&f->header);
    zmq_msg_close(&f->payload);
}

static ps_err own_small(zmq_msg_t *msg)
{
    size_t bytes = zmq_msg_size(msg);
    bool aligned = ((uintptr_t)zmq_msg_data(msg) & 7) == 0;
    if (bytes == 0 || (bytes >= OWN_BELOW && aligned)) return PS_OK;
    zmq_msg_t own;
    if (zmq_msg_init_size(&own, bytes) != 0)
        return ps_err_set(PS_ERR_NOMEM, "no memory for a payload of %zu bytes", bytes);
    memcpy(zmq_msg_data(&own), zmq_msg_data(msg), bytes);
    zmq_msg_move(msg, &own);
    zmq_msg_close(&own);
    return PS_OK;
}

ps_err ps_wire_recv(void *socket, bool router, ps_wire_frames *f, bool *got)
{
    *got = false;
    // A message without a payload must not keep that of the message before.
    zmq_msg_close(&f->payload);
    zmq_msg_init(&f->payload);
    f->n = 0;
    f->has_payload = false;
    zmq_msg_t *const order[] = {&f->id, &f->header, &f->payload};
    zmq_msg_t surplus;
    zmq_msg_init(&surplus);
    int at = router ? 0 : 1;
    bool more = true;
    ps_err err = PS_OK;
    for (; more; at++) {
        zmq_msg_t *msg = at < 3 ? order[at] : &surplus;
        if (zmq_msg_recv(msg, socket, ZMQ_DONTWAIT) < 0) {
            if (zmq_errno() != EAGAIN && zmq_errno() != EINTR)
                err = wire_socket_failure("receiving");
            goto out;
        }
        f->n++;
        if (at == 2) f->has_payload = true;
        more = zmq_msg_more(msg);
    }
    *got = true;
    if (f->has_payload) err = own_small(&f->payload);
out:
    zmq_msg_close(&surplus);
    return err;
}

static void wire_socket_keep(void *payload, void *hint)
{
}

static ps_err send_failure(void)
{
    if (zmq_errno() == EHOSTUNREACH)
        return ps_err_set(PS_ERR_PEER, "the peer is not connected");
    return wire_socket_failure("sending");
}

static ps_err send_payload(void *socket, const void *payload, size_t bytes,
                           ps_wire_pass pass)
{
    if (pass == PS_WIRE_COPY)
        return zmq_send(socket, payload, bytes, ZMQ_DONTWAIT) < 0 ? send_failure()
                                                                  : PS_OK;
    zmq_msg_t msg;
    if (zmq_msg_init_data(&msg, (void *)(uintptr_t)payload, bytes, wire_socket_keep,
                          NULL) != 0)
        return ps_err_set(PS_ERR_NOMEM, "no memory for a message");
    if (zmq_msg_send(&msg, socket, ZMQ_DONTWAIT) >= 0) return PS_OK;
    ps_err err = send_failure();
    zmq_msg_close(&msg);
    return err;
}

ps_err ps_wire_send(void *socket, const void *id, size_t id_bytes,
                    const ps_wire_header *h, const void *payload, size_t payload_bytes,
                    ps_wire_pass pass, uint64_t *sent)
{
    uint8_t header[PS_WIRE_HEADER_MAX];
    size_t header_bytes;
    ps_wire_encode(h, header, &header_bytes);
    if (id && zmq_send(socket, id, id_bytes, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0)
        return send_failure();
    int more = payload ? ZMQ_SNDMORE : 0;
    if (zmq_send(socket, header, header_bytes, more | ZMQ_DONTWAIT) < 0)
        return send_failure();
    if (payload) PS_TRY(send_payload(socket, payload, payload_bytes, pass));
    if (sent) *sent += header_bytes + (payload ? payload_bytes : 0);
    return PS_OK;
}
