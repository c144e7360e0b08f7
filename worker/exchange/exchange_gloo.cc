extern "C" {
#include "exchange_gloo.h"
}

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <poll.h>
#include <string>
#include <thread>
#include <vector>

#include <gloo/allreduce.h>
#include <gloo/broadcast.h>
#include <gloo/common/error.h>
#include <gloo/context.h>
#include <gloo/rendezvous/store.h>
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

/* As rendezvous::Context::connectFullMesh, with an end to every wait. */
class Mesh : public gloo::Context {
  public:
    using gloo::Context::Context;

    void connect(ps_member *member, std::shared_ptr<gloo::transport::Device> device,
                 int64_t timeout_ms)
    {
        MemberStore store(member, timeout_ms);
        auto pairs = device->createContext(rank, size);
        pairs->setTimeout(getTimeout());
        for (int i = 0; i < size; i++)
            if (i != rank)
                store.set(key(rank, i), pairs->createPair(i)->address().bytes());
        std::vector<std::vector<char>> addresses(size);
        for (int i = 0; i < size; i++)
            if (i != rank) addresses[i] = store.get(key(i, rank));
        ConnectWatch watch(member, pairs.get(), timeout_ms);
        for (int i = 0; i < size && !watch.ended(); i++)
            if (i != rank) pairs->getPair(i)->connect(addresses[i]);
        watch.stop();
        if (watch.ended())
            throw gloo::Exception("not every worker answered (net.join_timeout_ms)");
        device_ = std::move(device);
        transportContext_ = std::move(pairs);
    }

  private:
    /* Of the address where rank `from` awaits rank `to`. */
    static std::string key(int from, int to)
    {
        return std::to_string(from) + "/" + std::to_string(to);
    }
};

struct GlooCollective {
    ps_collective base;
    int rank, world_size;
    milliseconds timeout;
    std::shared_ptr<gloo::transport::Device> device;
    std::shared_ptr<Mesh> context;
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

/* out may be a or b, but never overlaps them in part. */
void add(void *out, const void *a, const void *b, size_t n)
{
    float *o = static_cast<float *>(out);
    const float *x = static_cast<const float *>(a), *y = static_cast<const float *>(b);
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        o[i] = x[i] + y[i];
}

ps_err all_reduce(ps_collective *base, float *values, uint64_t count)
{
    GlooCollective *c = of(base);
    if (c->world_size == 1 || count == 0) return PS_OK;
    return guarded("all-reduce", [&] {
        gloo::AllreduceOptions options(c->context);
        options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
        options.setReduceFunction(add);
        options.setOutput(values, count);
        options.setTimeout(c->timeout);
        gloo::allreduce(options);
    });
}

ps_err broadcast(ps_collective *base, const ps_collective_range *ranges, int n)
{
    GlooCollective *c = of(base);
    if (c->world_size == 1) return PS_OK;
    return guarded("broadcast", [&] {
        for (int i = 0; i < n; i++) {
            if (ranges[i].n_bytes == 0) continue;
            gloo::BroadcastOptions options(c->context);
            options.setOutput(static_cast<char *>(ranges[i].bytes), ranges[i].n_bytes);
            options.setRoot(0);
            options.setTimeout(c->timeout);
            gloo::broadcast(options);
        }
    });
}

/* Gloo closes every connection of a context when one of its waits runs out: so a wait
 * that nobody will answer ends those of the other thread at once. (Context's own
 * closeConnections leaves pending waits to their timeouts.) A wait for a peer that has
 * gone fails without closing the others, so every peer is asked. */
void abort_calls(ps_collective *base)
{
    GlooCollective *c = of(base);
    for (int peer = 0; peer < c->world_size; peer++) {
        if (peer == c->rank) continue;
        (void)guarded("abort", [&] {
            char unused = 0;
            auto buffer = c->context->createUnboundBuffer(&unused, 1);
            buffer->recv(peer, UINT64_MAX);
            buffer->waitRecv(milliseconds(1));
        });
    }
}

void destroy(ps_collective **base)
{
    GlooCollective *c = of(*base);
    (void)guarded("close", [&] {
        c->context.reset();
        c->device.reset();
    });
    delete c;
    *base = nullptr;
}

const ps_collective_ops gloo_ops = {"gloo", all_reduce, broadcast, abort_calls, destroy};

ps_err connect(const ps_exchange_options *options, ps_device_stream *,
               ps_collective **out)
{
    const ps_config_net *net = &options->config->net;
    GlooCollective *c = new (std::nothrow) GlooCollective();
    if (!c) return ps_err_set(PS_ERR_NOMEM, "gloo: out of memory");
    c->base.ops = &gloo_ops;
    c->rank = options->rank;
    c->world_size = options->world_size;
    c->timeout = milliseconds(net->step_timeout_ms);
    *out = &c->base;
    if (c->world_size == 1) return PS_OK;
    return guarded("connecting the workers", [&] {
        gloo::transport::tcp::attr attr(ps_member_address(options->member));
        c->device = gloo::transport::tcp::CreateDevice(attr);
        c->context = std::make_shared<Mesh>(c->rank, c->world_size);
        c->context->setTimeout(milliseconds(net->join_timeout_ms));
        c->context->connect(options->member, c->device, net->join_timeout_ms);
    });
}

ps_err create(const ps_exchange_options *options, ps_exchange **out)
{
    return ps_allreduce_create(&ps_exchange_gloo_ops, options, connect, out);
}

} // namespace

extern "C" const ps_exchange_ops ps_exchange_gloo_ops = PS_ALLREDUCE_OPS("gloo", create);
