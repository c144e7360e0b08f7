/* All-reduce between CPUs through Gloo, the engine that PyTorch's DDP uses there.
 *
 * The only C++ of the project is behind this C face (with gloo_mesh.hpp, which connects
 * the workers), and no exception leaves it. Without Gloo (PS_WITH_GLOO=OFF) the files are
 * not compiled and the table of exchanges has no "gloo".
 */
#include "gloo_mesh.hpp"

extern "C" {
#include "allreduce.h"
#include "ordered_sum.h"
#include "send_queue.h"
#include "shm_collective.h"
#include "thread.h"
}

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <vector>

#include <gloo/common/error.h>
#include <gloo/context.h>
#include <gloo/transport/tcp/device.h>

namespace {

using std::chrono::milliseconds;

using Buffer = std::unique_ptr<gloo::transport::Buffer>;
using UnboundBuffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

/* What is exchanged with one peer. Each end knows the other's layout (scatter.h), so a
 * message says where it belongs and Gloo's thread writes it there without asking.
 * (Unbound buffers ask first, and the answer waits behind megabytes that go the same
 * way.)
 *
 * This is safe because nothing that is still in use is overwritten. A peer sends
 * gradients of a bucket again only when it has gathered the bucket's weights, for which
 * its last gradients were summed. It sends weights only after this rank gave the
 * gradients behind them: since then their place belongs to the exchange. */
struct Link {
    int peer;
    Buffer grads_out, grads_in;
    std::vector<Buffer> weights_out, weights_in; // of each bucket
    std::vector<Buffer> arrays_out, arrays_in;   // of each array
    std::vector<char> inbox; // where arrays arrive, each at two places in turn
};

struct GlooCollective {
    ps_collective base;
    ps_exchange_options at;
    int rank, world_size;
    std::shared_ptr<gloo::transport::Device> device;
    std::shared_ptr<gloo::Context> context; // NULL until all are connected
    std::vector<Link> links;                // the next rank first
    ps_collective_layout layout;
    float *staging = nullptr; // where gradients arrive: this rank's parts, of each peer
    uint64_t own = 0;         // elements of them, of one peer
    std::vector<const float *> from; // of each rank, what is summed now
    bool second_place = false;       // of inboxes: of the arrays that come now

    ps_thread sender = {};
    std::vector<ps_send> on_the_way; // the sender's, the oldest first
    std::mutex lock;                 // of all below
    std::condition_variable changed;
    ps_send_queue queue = {};
    bool idle = true;   // all that was offered and shared has left
    uint64_t bytes = 0; // offered and shared, not yet in base
    std::string failed; // why nothing can be sent any more
    gloo::transport::UnboundBuffer *waiting = nullptr;
    bool aborted = false, stopping = false;
};

GlooCollective *of(ps_collective *c)
{
    return reinterpret_cast<GlooCollective *>(c);
}

/* Runs what may throw; what is thrown becomes a NET error that says what was tried. */
template <typename F> ps_err guarded(const char *what, F &&work) noexcept
{
    try {
        work();
        return PS_OK;
    } catch (const std::bad_alloc &) {
        return ps_err_set(PS_ERR_NOMEM, "gloo: %s: out of memory", what);
    } catch (const std::exception &e) {
        return ps_err_set(PS_ERR_NET, "gloo: %s: %s", what, e.what());
    } catch (...) {
        return ps_err_set(PS_ERR_NET, "gloo: %s: unknown failure", what);
    }
}

/* Slots of messages. Arrays, then the weights of each bucket, follow the gradients. */
enum : int { SLOT_GRADS, SLOT_ARRAYS };
constexpr uint64_t SLOT_WHOLE = 1;            // of unbound buffers
constexpr size_t BROADCAST_PIECE = 256 << 10; // bytes

/* Segments to one peer that Gloo has and the kernel has not yet taken. The kernel takes
 * about one more (Gloo makes its buffer as large as the largest message), so that a link
 * does not wait for the next, and no switch has to hold more of one rank. */
constexpr int ON_THE_WAY = 1;

constexpr size_t bytes_of(uint64_t floats)
{
    return floats * sizeof(float);
}

/* Gloo's waits know nothing of ps_deadline, which does not count the time in which the
 * process was stopped. The thread that waits for the sums enforces net.step_timeout_ms,
 * and abort_calls ends Gloo's waits. */
constexpr milliseconds NO_LIMIT = std::chrono::hours(24 * 365);

/* While it lives, abort_calls knows which buffer is waited for. */
class Waiting {
  public:
    Waiting(GlooCollective *c, gloo::transport::UnboundBuffer *buffer) : c_(c)
    {
        std::lock_guard<std::mutex> guard(c->lock);
        if (c->aborted) throw gloo::Exception("aborted");
        c->waiting = buffer;
    }

    ~Waiting()
    {
        std::lock_guard<std::mutex> guard(c_->lock);
        c_->waiting = nullptr;
    }

  private:
    GlooCollective *c_;
};

enum Way { RECEIVED, SENT };

/* Waits until one more of the buffer's messages has gone this way. */
void await(GlooCollective *c, const UnboundBuffer &buffer, Way way)
{
    Waiting waiting(c, buffer.get());
    if (!(way == SENT ? buffer->waitSend(NO_LIMIT) : buffer->waitRecv(NO_LIMIT)))
        throw gloo::Exception("aborted");
}

/* ------------------------------------------------------------------------- sending */

Link &link_to(GlooCollective *c, int peer)
{
    return c->links[(peer - c->rank - 1 + c->world_size) % c->world_size];
}

gloo::transport::Buffer &buffer_of(GlooCollective *c, const ps_send &m)
{
    Link &link = link_to(c, m.peer);
    return *(m.weights ? link.weights_out[m.bucket] : link.grads_out);
}

/* Returns at once. */
void post(GlooCollective *c, const ps_send &m)
{
    const ps_scatter *s = c->layout.scatter;
    gloo::transport::Buffer &buffer = buffer_of(c, m);
    const ps_chunk segment =
        ps_scatter_segment(s, m.bucket, m.weights ? c->rank : m.peer, m.segment);
    const size_t bytes = bytes_of(segment.count), at = bytes_of(m.segment * s->segment);
    if (m.weights)
        buffer.send(at, bytes, at);
    else
        buffer.send(bytes_of(segment.offset), bytes,
                    bytes_of(ps_scatter_before(s, m.bucket, m.peer)) + at);
}

/* Sends what the queue says until there is nothing left to send, or to wait for. The lock
 * is held, but not while Gloo is called. */
void send_rounds(GlooCollective *c, std::unique_lock<std::mutex> &lock)
{
    std::vector<ps_send> &on_the_way = c->on_the_way;
    ps_send m;
    for (;;) {
        const bool more = ps_send_queue_next(&c->queue, &m);
        if (!more && on_the_way.empty()) return;
        lock.unlock();
        if (more) {
            post(c, m);
            on_the_way.push_back(m);
            lock.lock();
            continue;
        }
        buffer_of(c, on_the_way.front()).waitSend();
        lock.lock();
        ps_send_queue_sent(&c->queue, on_the_way.front().peer);
        on_the_way.erase(on_the_way.begin());
    }
}

void send_until_stopped(GlooCollective *c)
{
    std::unique_lock<std::mutex> lock(c->lock);
    while (!c->aborted && !c->stopping) {
        send_rounds(c, lock);
        c->idle = true;
        c->changed.notify_all();
        c->changed.wait(lock, [c] { return !c->idle || c->aborted || c->stopping; });
    }
}

void send_failed(GlooCollective *c)
{
    std::lock_guard<std::mutex> guard(c->lock);
    c->failed = ps_err_message();
    c->changed.notify_all();
}

extern "C" void *gloo_sender_main(void *arg)
{
    GlooCollective *c = static_cast<GlooCollective *>(arg);
    if (guarded("sending", [c] { send_until_stopped(c); }) != PS_OK) send_failed(c);
    return nullptr;
}

/* There are more elements to send. The lock is held. */
void send_more(GlooCollective *c, uint64_t elements)
{
    c->bytes += bytes_of(elements);
    c->idle = false;
    c->changed.notify_all();
}

void offer(ps_collective *base)
{
    GlooCollective *c = of(base);
    if (c->world_size == 1) return;
    std::lock_guard<std::mutex> guard(c->lock);
    const ps_scatter *s = c->layout.scatter;
    const int bucket = (int)(c->queue.offered % (uint64_t)s->n_buckets);
    uint64_t elements = 0;
    for (const Link &link : c->links)
        elements += ps_scatter_part(s, bucket, link.peer)->count;
    ps_send_queue_offer(&c->queue);
    send_more(c, elements);
}

ps_err share(ps_collective *base, int bucket, uint64_t segment)
{
    GlooCollective *c = of(base);
    if (c->world_size == 1) return PS_OK;
    std::lock_guard<std::mutex> guard(c->lock);
    const ps_chunk s = ps_scatter_segment(c->layout.scatter, bucket, c->rank, segment);
    ps_send_queue_share(&c->queue, bucket);
    send_more(c, s.count * c->links.size());
    return PS_OK;
}

ps_err flush(ps_collective *base)
{
    GlooCollective *c = of(base);
    if (c->world_size == 1) return PS_OK;
    std::unique_lock<std::mutex> lock(c->lock);
    c->changed.wait(lock, [c] { return c->idle || c->aborted || !c->failed.empty(); });
    if (!c->failed.empty()) return ps_err_set(PS_ERR_NET, "%s", c->failed.c_str());
    return c->aborted ? ps_err_set(PS_ERR_NET, "gloo: aborted") : PS_OK;
}

/* ------------------------------------------------------------------ sums and weights */

/* Where a peer's gradients of a segment of this rank's are, once they are there. */
const float *grads_from(GlooCollective *c, size_t i, int bucket, uint64_t segment)
{
    const ps_scatter *s = c->layout.scatter;
    return c->staging + i * c->own + ps_scatter_before(s, bucket, c->rank) +
           segment * s->segment;
}

ps_err sum(ps_collective *base, int bucket, uint64_t segment)
{
    GlooCollective *c = of(base);
    if (c->world_size == 1) return PS_OK;
    return guarded("reduce-scatter", [&] {
        const ps_chunk s =
            ps_scatter_segment(c->layout.scatter, bucket, c->rank, segment);
        float *own = c->layout.grads + s.offset;
        c->from[c->rank] = own;
        for (size_t i = 0; i < c->links.size(); i++) {
            c->links[i].grads_in->waitRecv();
            c->from[c->links[i].peer] = grads_from(c, i, bucket, segment);
        }
        ps_ordered_sum(own, c->from.data(), c->world_size, 0, s.count);
    });
}

/* Called by the thread that makes the calls. */
void count_bytes(GlooCollective *c)
{
    std::lock_guard<std::mutex> guard(c->lock);
    c->base.bytes += c->bytes;
    c->bytes = 0;
}

ps_err gather(ps_collective *base, int bucket)
{
    GlooCollective *c = of(base);
    if (c->world_size == 1) return PS_OK;
    return guarded("all-gather", [&] {
        for (Link &link : c->links) {
            const ps_scatter *s = c->layout.scatter;
            uint64_t n = ps_scatter_segments(s, bucket, link.peer);
            for (; n > 0; n--)
                link.weights_in[bucket]->waitRecv();
        }
        count_bytes(c);
    });
}

size_t array_bytes(const ps_collective_parts &array, int rank)
{
    return (array.cuts[rank + 1] - array.cuts[rank]) * array.element_bytes;
}

char *array_place(const ps_collective_parts &array, int rank)
{
    return static_cast<char *>(array.base) + array.cuts[rank] * array.element_bytes;
}

void send_arrays(GlooCollective *c, Link &link)
{
    for (int k = 0; k < c->layout.n_arrays; k++) {
        const size_t bytes = array_bytes(c->layout.arrays[k], c->rank);
        link.arrays_out[k]->send(0, bytes, c->second_place ? bytes : 0);
        c->base.bytes += bytes;
    }
}

void take_arrays(GlooCollective *c, Link &link)
{
    const char *from = link.inbox.data();
    for (int k = 0; k < c->layout.n_arrays; k++) {
        const ps_collective_parts &array = c->layout.arrays[k];
        const size_t bytes = array_bytes(array, link.peer);
        link.arrays_in[k]->waitRecv();
        link.arrays_out[k]->waitSend();
        memcpy(array_place(array, link.peer), from + (c->second_place ? bytes : 0),
               bytes);
        from += 2 * bytes;
    }
}

/* A rank without a part in any bucket does not wait for the others, so its next arrays
 * may arrive before all of these are here. Its arrays after those wait for our next ones,
 * so two places are enough. */
ps_err all_gather(ps_collective *base)
{
    GlooCollective *c = of(base);
    if (c->world_size == 1) return PS_OK;
    return guarded("all-gather", [c] {
        for (Link &link : c->links)
            send_arrays(c, link);
        for (Link &link : c->links)
            take_arrays(c, link);
        c->second_place = !c->second_place;
        count_bytes(c);
    });
}

/* ------------------------------------------------------------------------ laying out */

void bind_arrays(GlooCollective *c, Link &link)
{
    auto &pair = c->context->getPair(link.peer);
    size_t total = 0;
    for (int k = 0; k < c->layout.n_arrays; k++)
        total += 2 * array_bytes(c->layout.arrays[k], link.peer);
    link.inbox.resize(total);
    char *in = link.inbox.data();
    for (int k = 0; k < c->layout.n_arrays; k++) {
        const ps_collective_parts &a = c->layout.arrays[k];
        const size_t bytes = array_bytes(a, link.peer);
        link.arrays_out.push_back(pair->createSendBuffer(
            SLOT_ARRAYS + k, array_place(a, c->rank), array_bytes(a, c->rank)));
        link.arrays_in.push_back(pair->createRecvBuffer(SLOT_ARRAYS + k, in, 2 * bytes));
        in += 2 * bytes;
    }
}

void bind_weights(GlooCollective *c, Link &link)
{
    auto &pair = c->context->getPair(link.peer);
    for (int b = 0; b < c->layout.scatter->n_buckets; b++) {
        const int slot = SLOT_ARRAYS + c->layout.n_arrays + b;
        const ps_chunk *own = ps_scatter_part(c->layout.scatter, b, c->rank);
        const ps_chunk *theirs = ps_scatter_part(c->layout.scatter, b, link.peer);
        link.weights_out.push_back(pair->createSendBuffer(
            slot, c->layout.params + own->offset, bytes_of(own->count)));
        link.weights_in.push_back(pair->createRecvBuffer(
            slot, c->layout.params + theirs->offset, bytes_of(theirs->count)));
    }
}

void bind_links(GlooCollective *c)
{
    for (size_t i = 0; i < c->links.size(); i++) {
        Link &link = c->links[i];
        auto &pair = c->context->getPair(link.peer);
        float *in = c->staging + i * c->own;
        link.grads_out = pair->createSendBuffer(SLOT_GRADS, c->layout.grads,
                                                bytes_of(c->at.table->arena_count));
        link.grads_in = pair->createRecvBuffer(SLOT_GRADS, in, bytes_of(c->own));
        bind_arrays(c, link);
        bind_weights(c, link);
    }
}

ps_err lay_out(ps_collective *base, const ps_collective_layout *layout)
{
    GlooCollective *c = of(base);
    if (c->world_size == 1) return PS_OK;
    c->layout = *layout;
    PS_TRY(ps_send_queue_init(&c->queue, layout->scatter, c->rank, ON_THE_WAY));
    c->own = ps_scatter_before(layout->scatter, layout->scatter->n_buckets, c->rank);
    PS_TRY(ps_mem_map_zeroed(&c->staging, bytes_of(c->own) * c->links.size(),
                             "gradients of the other workers"));
    PS_TRY(guarded("laying out", [c] {
        c->from.resize(c->world_size);
        c->on_the_way.reserve(c->links.size() * ON_THE_WAY);
        bind_links(c);
    }));
    return ps_thread_start(&c->sender, "gloo send", gloo_sender_main, c);
}

/* ------------------------------------------------------------------------- the rest */

/* From rank 0 along the chain of the ranks, in pieces: each rank passes a piece on while
 * it receives the next, so that no link carries a byte twice. (Not by gloo::broadcast,
 * whose buffers abort_calls could not reach.) */
void broadcast_range(GlooCollective *c, const ps_collective_range &range)
{
    auto buffer = c->context->createUnboundBuffer(range.bytes, range.n_bytes);
    const bool first = c->rank == 0, last = c->rank == c->world_size - 1;
    auto piece = [&](size_t at) { return std::min(BROADCAST_PIECE, range.n_bytes - at); };
    for (size_t at = 0; !first && at < range.n_bytes; at += BROADCAST_PIECE)
        buffer->recv(c->rank - 1, SLOT_WHOLE, at, piece(at));
    for (size_t at = 0; at < range.n_bytes; at += BROADCAST_PIECE) {
        if (!first) await(c, buffer, RECEIVED);
        if (!last) buffer->send(c->rank + 1, SLOT_WHOLE, at, piece(at));
    }
    for (size_t at = 0; !last && at < range.n_bytes; at += BROADCAST_PIECE)
        await(c, buffer, SENT);
}

ps_err broadcast(ps_collective *base, const ps_collective_range *ranges, int n)
{
    GlooCollective *c = of(base);
    if (c->world_size == 1) return PS_OK;
    return guarded("broadcast", [&] {
        for (int i = 0; i < n; i++) {
            if (ranges[i].n_bytes == 0) continue;
            base->bytes += ranges[i].n_bytes;
            broadcast_range(c, ranges[i]);
        }
    });
}

void end_wait(GlooCollective *c)
{
    std::lock_guard<std::mutex> guard(c->lock);
    c->aborted = true;
    c->changed.notify_all();
    if (!c->waiting) return;
    c->waiting->abortWaitRecv();
    c->waiting->abortWaitSend();
}

/* An unbound buffer that a message is being read into, or sent from, does not learn that
 * its connection has ended, so the other thread's wait is ended first. Then the
 * connections are closed, which ends the waits of bound buffers. Gloo closes every
 * connection of a context when one of its waits times out, so this waits for a message
 * that nobody will send. (Context's own closeConnections leaves pending waits to their
 * timeouts.) A wait for a peer that has gone fails without closing the others, so every
 * peer is asked. */
void abort_calls(ps_collective *base)
{
    GlooCollective *c = of(base);
    end_wait(c);
    for (size_t i = 0; c->context && i < c->links.size(); i++)
        (void)guarded("abort", [&] {
            char unused = 0;
            auto buffer = c->context->createUnboundBuffer(&unused, 1);
            buffer->recv(c->links[i].peer, UINT64_MAX);
            buffer->waitRecv(milliseconds(1));
        });
}

void end_sender(GlooCollective *c)
{
    if (!c->sender.runs) return;
    c->lock.lock();
    c->stopping = true;
    c->changed.notify_all();
    c->lock.unlock();
    ps_thread_join(&c->sender);
}

void destroy(ps_collective **base)
{
    GlooCollective *c = of(*base);
    end_sender(c);
    (void)guarded("close", [&] {
        c->links.clear();
        c->context.reset();
        c->device.reset();
    });
    ps_mem_unmap(c->staging, bytes_of(c->own) * (size_t)(c->world_size - 1));
    ps_send_queue_fini(&c->queue);
    delete c;
    *base = nullptr;
}

const ps_collective_ops gloo_ops = {
    .all_reduce = nullptr, // it scatters
    .complete = nullptr,
    .lay_out = lay_out,
    .offer = offer,
    .sum = sum,
    .share = share,
    .all_gather = all_gather,
    .gather = gather,
    .flush = flush,
    .broadcast = broadcast,
    .abort = abort_calls,
    .destroy = destroy,
};

ps_err connect(const ps_exchange_options *options, ps_device_stream *,
               ps_collective **out)
{
    ps_err err = ps_shm_collective_open(options, out);
    if (err != PS_OK || *out) return err;
    GlooCollective *c = new (std::nothrow) GlooCollective();
    if (!c) return ps_err_set(PS_ERR_NOMEM, "gloo: out of memory");
    c->base.ops = &gloo_ops;
    c->base.segment = PS_SEGMENT_BYTES / sizeof(float);
    c->at = *options;
    c->rank = options->rank;
    c->world_size = options->world_size;
    *out = &c->base;
    if (c->world_size == 1) return PS_OK;
    return guarded("connecting the workers", [&] {
        gloo::transport::tcp::attr attr(ps_member_address(options->member));
        c->device = gloo::transport::tcp::CreateDevice(attr);
        c->context = ps_gloo_mesh_connect(
            {.member = options->member,
             .rank = c->rank,
             .world_size = c->world_size,
             .device = c->device,
             .connect_timeout_ms = int64_t(options->settings.join_timeout_ms),
             .call_timeout = NO_LIMIT});
        c->links.resize(c->world_size - 1);
        for (int i = 0; i < c->world_size - 1; i++)
            c->links[i].peer = (c->rank + 1 + i) % c->world_size;
    });
}

ps_err create(const ps_exchange_options *options, ps_exchange **out)
{
    return ps_allreduce_create(&ps_exchange_gloo_ops, options, connect, out);
}

} // namespace

extern "C" const ps_exchange_ops ps_exchange_gloo_ops =
    PS_ALLREDUCE_OPS("gloo", false, create);
