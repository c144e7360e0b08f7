extern "C" {
#include "exchange_gloo.h"
#include "log.h"
#include "shm_peers.h"
}

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <netinet/in.h>
#include <new>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gloo/common/error.h>
#include <gloo/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>

namespace {

using std::chrono::milliseconds;

/* Gloo's key-value store is the coordinator's. A failure becomes an exception here and a
 * ps_err again in guarded(). */
class MemberStore : public gloo::rendezvous::Store {
  public:
    MemberStore(ps_member *member, int64_t timeout_ms)
        : member_(member), timeout_ms_(timeout_ms)
    {
    }

    void set(const std::string &key, const std::vector<char> &value) override
    {
        std::string name = "gloo/" + key;
        if (ps_member_put(member_, name.c_str(), value.data(), value.size(),
                          ps_deadline_in_ms(timeout_ms_)) != PS_OK)
            throw gloo::Exception(ps_err_message());
    }

    std::vector<char> get(const std::string &key) override
    {
        return fetch(key, milliseconds(timeout_ms_));
    }

    void wait(const std::vector<std::string> &keys) override
    {
        wait(keys, milliseconds(timeout_ms_));
    }

    void wait(const std::vector<std::string> &keys, const milliseconds &timeout) override
    {
        for (const std::string &key : keys)
            fetch(key, timeout);
    }

  private:
    std::vector<char> fetch(const std::string &key, milliseconds timeout)
    {
        std::string name = "gloo/" + key;
        void *value = nullptr;
        size_t bytes = 0;
        if (ps_member_get(member_, name.c_str(), &value, &bytes,
                          ps_deadline_in_ms((uint64_t)timeout.count())) != PS_OK)
            throw gloo::Exception(ps_err_message());
        const char *chars = static_cast<const char *>(value);
        std::vector<char> out(chars, chars + bytes);
        free(value);
        return out;
    }

    ps_member *member_;
    int64_t timeout_ms_;
};

/* Ends the waits of pairs that connect, when the job is over or the time is up: Gloo
 * itself waits for five times its timeout, however dead the other side is. */
class ConnectWatch {
  public:
    ConnectWatch(ps_member *member, gloo::transport::Context *pairs, int64_t timeout_ms)
        : member_(member), pairs_(pairs), deadline_(ps_deadline_in_ms(timeout_ms)),
          thread_([this] { run(); })
    {
    }

    ~ConnectWatch()
    {
        stop();
    }

    bool ended() const
    {
        return ended_;
    }

    /* After it, ended() changes no more. */
    void stop()
    {
        done_ = true;
        if (thread_.joinable()) thread_.join();
    }

  private:
    static constexpr int POLL_MS = 20;

    void run() noexcept
    {
        struct pollfd over = {ps_member_abort_fd(member_), POLLIN, 0};
        while (!done_ && poll(&over, 1, POLL_MS) <= 0 && !ps_deadline_passed(deadline_)) {
        }
        if (done_) return;
        ended_ = true;
        for (int i = 0; i < pairs_->size; i++)
            if (pairs_->getPair(i)) pairs_->getPair(i)->close();
    }

    ps_member *member_;
    gloo::transport::Context *pairs_;
    ps_deadline deadline_;
    std::atomic<bool> done_{false}, ended_{false};
    std::thread thread_;
};

/* As rendezvous::Context::connectFullMesh, with an end to every wait.
 *
 * Each of Gloo's pairs listens at a port of its own and takes the first who comes: a
 * stranger (a port scanner) then has the place of a worker, which is refused. So all
 * workers compare what they got, and greet each other; where that fails anywhere, all
 * start again, at other ports and under other keys. */
class Mesh : public gloo::Context {
  public:
    using gloo::Context::Context;

    void connect(ps_member *member, std::shared_ptr<gloo::transport::Device> device,
                 int64_t timeout_ms)
    {
        bool all = false;
        for (int attempt = 0; attempt < ATTEMPTS && !all; attempt++) {
            if (attempt > 0)
                PS_WARN("gloo", "again=%d reason=\"%s\"", attempt, why_.c_str());
            Attempt a(*this, member, device, timeout_ms, attempt);
            all = a.agree("connected", a.connect()) && a.agree("greeted", a.greet());
        }
        if (!all) throw gloo::Exception(why_ + "; strangers come to the workers' ports");
        device_ = std::move(device);
    }

  private:
    static constexpr int ATTEMPTS = 5;

    class Attempt {
      public:
        Attempt(Mesh &mesh, ps_member *member,
                std::shared_ptr<gloo::transport::Device> &device, int64_t timeout_ms,
                int number)
            : mesh_(mesh), member_(member), timeout_ms_(timeout_ms),
              prefix_(std::to_string(number) + "/")
        {
            mesh.transportContext_ = device->createContext(mesh.rank, mesh.size);
            mesh.transportContext_->setTimeout(mesh.getTimeout());
            mesh.why_ = "another worker could not connect";
        }

        bool connect()
        {
            auto &pairs = mesh_.transportContext_;
            MemberStore store(member_, timeout_ms_);
            for (int peer : others())
                store.set(key(mesh_.rank, peer),
                          pairs->createPair(peer)->address().bytes());
            std::vector<std::vector<char>> addresses(mesh_.size);
            for (int peer : others())
                addresses[peer] = store.get(key(peer, mesh_.rank));
            ConnectWatch watch(member_, pairs.get(), timeout_ms_);
            bool all = true;
            for (int peer : others()) {
                if (watch.ended()) break;
                if (tried([&] { pairs->getPair(peer)->connect(addresses[peer]); }))
                    continue;
                all = false;
                visit(addresses[peer]);
            }
            watch.stop();
            if (watch.ended())
                throw gloo::Exception("not every worker answered (net.join_timeout_ms)");
            return all;
        }

        /* A byte to and from every peer. */
        bool greet()
        {
            auto &pairs = mesh_.transportContext_;
            std::vector<char> bytes(mesh_.size);
            auto buffer = pairs->createUnboundBuffer(bytes.data(), bytes.size());
            return tried([&] {
                for (int peer : others()) {
                    buffer->recv(peer, GREETING, peer, 1);
                    buffer->send(peer, GREETING, mesh_.rank, 1);
                }
                for (size_t i = 0; i < others().size(); i++)
                    if (!buffer->waitRecv(GREET) || !buffer->waitSend(GREET))
                        throw gloo::Exception("aborted");
            });
        }

        bool agree(const char *on, bool mine)
        {
            double yes = mine;
            if (ps_member_reduce(member_, ("gloo/" + prefix_ + on).c_str(), &yes, 1,
                                 ps_deadline_in_ms(timeout_ms_)) != PS_OK)
                throw gloo::Exception(ps_err_message());
            return yes == mesh_.size;
        }

      private:
        static constexpr uint64_t GREETING = 4;
        static constexpr time_t VISIT_S = 2;
        static constexpr milliseconds GREET{5000};

        std::vector<int> others() const
        {
            std::vector<int> ranks;
            for (int i = 0; i < mesh_.size; i++)
                if (i != mesh_.rank) ranks.push_back(i);
            return ranks;
        }

        /* Of the address where rank `from` awaits rank `to`. */
        std::string key(int from, int to) const
        {
            return prefix_ + std::to_string(from) + "/" + std::to_string(to);
        }

        /* So that a peer that still waits for this rank need not wait in vain. */
        static void visit(const std::vector<char> &address)
        {
            const sockaddr_storage at =
                gloo::transport::tcp::Address(address).getSockaddr();
            const struct timeval limit = {VISIT_S, 0};
            int fd = socket(at.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
            if (fd < 0) return;
            setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
            (void)::connect(fd, reinterpret_cast<const sockaddr *>(&at),
                            at.ss_family == AF_INET ? sizeof(sockaddr_in)
                                                    : sizeof(sockaddr_in6));
            close(fd);
        }

        template <typename F> bool tried(F &&work)
        {
            try {
                work();
                return true;
            } catch (const gloo::Exception &e) {
                mesh_.why_ = e.what();
                return false;
            }
        }

        Mesh &mesh_;
        ps_member *member_;
        int64_t timeout_ms_;
        std::string prefix_; // of this attempt's keys
    };

    std::string why_; // the last attempt failed
};

using Buffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

struct GlooCollective {
    ps_collective base;
    ps_exchange_options at;
    int rank, world_size;
    std::vector<int> peers; // the next rank first, so that not all send to one at once
    ps_shm_peers *memory;   // the peers' arenas, or NULL: they are not all here
    std::vector<float> staging; // where gradients arrive without it
    std::vector<char> tokens;   // one from each rank
    std::shared_ptr<gloo::transport::Device> device;
    std::shared_ptr<Mesh> context;
    Buffer token_buffer;
    std::mutex lock; // of the two below
    gloo::transport::UnboundBuffer *waiting = nullptr;
    bool aborted = false;
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

/* Floats that gradients are received in: two segments from every peer, one that arrives
 * while the other is summed. Gloo's own ring takes as much, anew in every call. */
constexpr uint64_t STAGING = 1 << 19;

/* Of messages: no collective of Gloo's has them. */
enum : uint64_t { SLOT_PARTS = 1, SLOT_TOKENS = 2, SLOT_WHOLE = 3 };

constexpr size_t bytes_of(uint64_t floats)
{
    return floats * sizeof(float);
}

/* Gloo's waits know nothing of ps_deadline, which leaves out what a process has stood
 * still: net.step_timeout_ms is kept by who waits for the sums, and abort_calls ends
 * these. */
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
void await(GlooCollective *c, const Buffer &buffer, Way way)
{
    Waiting waiting(c, buffer.get());
    if (!(way == SENT ? buffer->waitSend(NO_LIMIT) : buffer->waitRecv(NO_LIMIT)))
        throw gloo::Exception("aborted");
}

/* Returns when every peer has come here, too: what they wrote before, or posted, is
 * there. */
void meet(GlooCollective *c)
{
    const Buffer &b = c->token_buffer;
    for (int peer : c->peers)
        b->recv(peer, SLOT_TOKENS, peer, 1);
    for (int peer : c->peers)
        b->send(peer, SLOT_TOKENS, c->rank, 1);
    for (size_t i = 0; i < c->peers.size(); i++) {
        await(c, b, RECEIVED);
        await(c, b, SENT);
    }
}

/* out = ((from[0] + from[1]) + from[2]) + ..., n floats each; out may be one of them. */
void sum_in_order(float *out, const std::vector<const float *> &from, uint64_t n)
{
    constexpr uint64_t BLOCK = 2048; // stays in the first cache
    float partial[BLOCK];
    for (uint64_t at = 0; at < n; at += BLOCK) {
        const uint64_t count = std::min(BLOCK, n - at);
        const float *a = from[0] + at;
        for (size_t r = 1; r < from.size(); r++) {
            const float *b = from[r] + at;
            float *to = r + 1 == from.size() ? out + at : partial;
#pragma omp simd
            for (uint64_t i = 0; i < count; i++)
                to[i] = a[i] + b[i];
            a = partial;
        }
    }
}

/* The sum of one's own part of the gradients, which arrives from all peers at once,
 * segment by segment.
 *
 * All ranks post what they send, and meet, before they post what they receive. So it is
 * written by Gloo's thread, when the peer is ready for it, and not by ours, which would
 * hold the connection's lock meanwhile: Gloo's thread polls without a pause for as long
 * as it finds a readable connection locked. */
class ReduceScatter {
  public:
    ReduceScatter(GlooCollective *c, float *values, const uint64_t *cuts)
        : c_(c), cuts_(cuts), own_(values + cuts[c->rank]),
          segment_(STAGING / 2 / (uint64_t)(c->world_size - 1)),
          grads_(c->context->createUnboundBuffer(values + cuts[0],
                                                 bytes_of(cuts[c->world_size] - cuts[0])))
    {
        for (int i = 0; i < 2; i++) {
            staging_[i] = c->staging.data() + (uint64_t)i * STAGING / 2;
            arrived_[i] =
                c->context->createUnboundBuffer(staging_[i], bytes_of(STAGING / 2));
        }
    }

    void run()
    {
        const uint64_t n = segments(c_->rank);
        uint64_t sent = send();
        meet(c_);
        for (uint64_t i = 0; i < n && i < 2; i++)
            receive(i);
        for (uint64_t i = 0; i < n; i++) {
            sum(i);
            if (i + 2 < n) receive(i + 2);
        }
        for (; sent > 0; sent--)
            await(c_, grads_, SENT);
    }

  private:
    uint64_t part(int rank) const
    {
        return cuts_[rank + 1] - cuts_[rank];
    }

    uint64_t segments(int rank) const
    {
        return (part(rank) + segment_ - 1) / segment_;
    }

    size_t segment_bytes(int rank, uint64_t i) const
    {
        return bytes_of(std::min(segment_, part(rank) - i * segment_));
    }

    /* Floats before a peer's segment in the staging. */
    uint64_t place(int peer) const
    {
        return (uint64_t)(peer < c_->rank ? peer : peer - 1) * segment_;
    }

    uint64_t send()
    {
        uint64_t sent = 0;
        for (int peer : c_->peers) {
            const uint64_t from = cuts_[peer] - cuts_[0];
            for (uint64_t i = 0; i < segments(peer); i++, sent++)
                grads_->send(peer, SLOT_PARTS, bytes_of(from + i * segment_),
                             segment_bytes(peer, i));
        }
        return sent;
    }

    void receive(uint64_t i)
    {
        for (int peer : c_->peers)
            arrived_[i % 2]->recv(peer, SLOT_PARTS, bytes_of(place(peer)),
                                  segment_bytes(c_->rank, i));
    }

    void sum(uint64_t i)
    {
        std::vector<const float *> from(c_->world_size);
        for (int peer : c_->peers) {
            await(c_, arrived_[i % 2], RECEIVED);
            from[peer] = staging_[i % 2] + place(peer);
        }
        float *own = own_ + i * segment_;
        from[c_->rank] = own;
        sum_in_order(own, from, segment_bytes(c_->rank, i) / sizeof(float));
    }

    GlooCollective *c_;
    const uint64_t *cuts_;
    float *own_;
    uint64_t segment_;
    Buffer grads_, arrived_[2];
    float *staging_[2];
};

/* The same from the peers' arenas, which hold their gradients once all have met. They are
 * read no more when the new weights of this part are gathered: only then the next
 * backward pass may begin there. */
void sum_from_memory(GlooCollective *c, float *values, const uint64_t *cuts)
{
    meet(c);
    const uint64_t begin = cuts[c->rank];
    std::vector<const float *> from(c->world_size, values + begin);
    for (int peer : c->peers)
        from[peer] = ps_shm_peers_grads(c->memory, peer) + begin;
    sum_in_order(values + begin, from, cuts[c->rank + 1] - begin);
}

ps_err reduce_scatter(ps_collective *base, float *values, const uint64_t *cuts)
{
    GlooCollective *c = of(base);
    if (c->world_size == 1) return PS_OK;
    return guarded("reduce-scatter", [&] {
        if (c->memory)
            sum_from_memory(c, values, cuts);
        else
            ReduceScatter(c, values, cuts).run();
        uint64_t own = cuts[c->rank + 1] - cuts[c->rank];
        (c->memory ? base->shm_bytes : base->bytes) +=
            bytes_of(cuts[c->world_size] - cuts[0] - own);
    });
}

/* An array whose parts travel, what is sent posted first, as above. */
class Gathered {
  public:
    Gathered(GlooCollective *c, const ps_collective_parts &array) : c_(c), array_(array)
    {
        char *base = static_cast<char *>(array.base) + at(0);
        buffer_ = c->context->createUnboundBuffer(base, at(c->world_size) - at(0));
    }

    /* Gives the bytes. */
    uint64_t send()
    {
        const size_t own = part(c_->rank);
        for (int peer : c_->peers)
            if (own) buffer_->send(peer, SLOT_PARTS, offset(c_->rank), own);
        return own * c_->peers.size();
    }

    void receive()
    {
        for (int peer : c_->peers)
            if (part(peer)) buffer_->recv(peer, SLOT_PARTS, offset(peer), part(peer));
    }

    void wait()
    {
        for (int peer : c_->peers)
            if (part(peer)) await(c_, buffer_, RECEIVED);
        for (size_t i = 0; i < c_->peers.size() && part(c_->rank); i++)
            await(c_, buffer_, SENT);
    }

  private:
    size_t at(int rank) const
    {
        return array_.cuts[rank] * array_.element_bytes;
    }

    size_t offset(int rank) const
    {
        return at(rank) - at(0);
    }

    size_t part(int rank) const
    {
        return at(rank + 1) - at(rank);
    }

    GlooCollective *c_;
    const ps_collective_parts &array_;
    Buffer buffer_;
};

/* The peers' parts of the parameters, from their arenas. They are written again only when
 * the gradients of the next step are summed, for which this rank is waited for. */
void copy_from_memory(GlooCollective *c, const ps_collective_parts &array)
{
    for (int peer : c->peers) {
        const uint64_t begin = array.cuts[peer], n = array.cuts[peer + 1] - begin;
        memcpy(static_cast<float *>(array.base) + begin,
               ps_shm_peers_params(c->memory, peer) + begin, bytes_of(n));
    }
    c->base.shm_bytes +=
        bytes_of(array.cuts[c->rank + 1] - array.cuts[c->rank]) * c->peers.size();
}

/* Arrays in the arena of parameters are copied, where the peers' can be read; others
 * travel. */
void gather(GlooCollective *c, const ps_collective_parts *arrays, int n)
{
    std::vector<Gathered> travelling;
    travelling.reserve(n);
    auto is_here = [c](const ps_collective_parts &array) {
        return c->memory && array.base == c->at.params->base;
    };
    for (int i = 0; i < n; i++)
        if (!is_here(arrays[i])) travelling.emplace_back(c, arrays[i]);
    for (Gathered &g : travelling)
        c->base.bytes += g.send();
    meet(c);
    for (Gathered &g : travelling)
        g.receive();
    for (int i = 0; i < n; i++)
        if (is_here(arrays[i])) copy_from_memory(c, arrays[i]);
    for (Gathered &g : travelling)
        g.wait();
}

ps_err all_gather(ps_collective *base, const ps_collective_parts *arrays, int n)
{
    GlooCollective *c = of(base);
    if (c->world_size == 1) return PS_OK;
    return guarded("all-gather", [&] { gather(c, arrays, n); });
}

/* From rank 0 along a binomial tree: rank r has it from r without its lowest bit. (Not by
 * gloo::broadcast, whose buffers abort_calls could not reach.) */
void broadcast_range(GlooCollective *c, const ps_collective_range &range)
{
    auto buffer = c->context->createUnboundBuffer(range.bytes, range.n_bytes);
    int step = 1, sent = 0;
    while (step < c->world_size && !(c->rank & step))
        step *= 2;
    if (c->rank != 0) {
        buffer->recv(c->rank - step, SLOT_WHOLE);
        await(c, buffer, RECEIVED);
    }
    while ((step /= 2) > 0)
        if (c->rank + step < c->world_size) {
            buffer->send(c->rank + step, SLOT_WHOLE);
            sent++;
        }
    for (; sent > 0; sent--)
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
    if (!c->waiting) return;
    c->waiting->abortWaitRecv();
    c->waiting->abortWaitSend();
}

/* A buffer that a message is being read into, or sent from, does not learn that its
 * connection has ended: the other thread's wait is ended first. Then the connections:
 * Gloo closes every one of a context when a wait of its runs out, so a message is waited
 * for that nobody will send. (Context's own closeConnections leaves pending waits to
 * their timeouts.) A wait for a peer that has gone fails without closing the others, so
 * every peer is asked. */
void abort_calls(ps_collective *base)
{
    GlooCollective *c = of(base);
    end_wait(c);
    for (int peer : c->peers)
        (void)guarded("abort", [&] {
            char unused = 0;
            auto buffer = c->context->createUnboundBuffer(&unused, 1);
            buffer->recv(peer, UINT64_MAX);
            buffer->waitRecv(milliseconds(1));
        });
}

void destroy(ps_collective **base)
{
    GlooCollective *c = of(*base);
    (void)guarded("close", [&] {
        c->token_buffer.reset();
        c->context.reset();
        c->device.reset();
    });
    ps_shm_peers_close(&c->memory);
    delete c;
    *base = nullptr;
}

const ps_collective_ops gloo_ops = {"gloo",     nullptr,   nullptr,     reduce_scatter,
                                    all_gather, broadcast, abort_calls, destroy};

ps_err connect(const ps_exchange_options *options, ps_device_stream *,
               ps_collective **out)
{
    const ps_config_net *net = &options->config->net;
    GlooCollective *c = new (std::nothrow) GlooCollective();
    if (!c) return ps_err_set(PS_ERR_NOMEM, "gloo: out of memory");
    c->base.ops = &gloo_ops;
    c->at = *options;
    c->rank = options->rank;
    c->world_size = options->world_size;
    *out = &c->base;
    if (c->world_size == 1) return PS_OK;
    ps_err err = ps_shm_peers_open(options, &c->memory);
    if (err != PS_OK) return err;
    return guarded("connecting the workers", [&] {
        if (!c->memory) c->staging.resize(STAGING);
        c->tokens.resize(c->world_size);
        for (int d = 1; d < c->world_size; d++)
            c->peers.push_back((c->rank + d) % c->world_size);
        gloo::transport::tcp::attr attr(ps_member_address(options->member));
        c->device = gloo::transport::tcp::CreateDevice(attr);
        c->context = std::make_shared<Mesh>(c->rank, c->world_size);
        c->context->setTimeout(milliseconds(net->join_timeout_ms));
        c->context->connect(options->member, c->device, net->join_timeout_ms);
        c->token_buffer =
            c->context->createUnboundBuffer(c->tokens.data(), c->tokens.size());
    });
}

ps_err create(const ps_exchange_options *options, ps_exchange **out)
{
    return ps_allreduce_create(&ps_exchange_gloo_ops, options, connect, out);
}

} // namespace

extern "C" const ps_exchange_ops ps_exchange_gloo_ops = PS_ALLREDUCE_OPS("gloo", create);
