#include "gloo_mesh.hpp"
#include "gloo_pairs.hpp"

extern "C" {
#include "job_keys.h"
#include "log.h"
}

#include <atomic>
#include <cstdlib>
#include <netinet/in.h>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gloo/common/error.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/address.h>

namespace {

using std::chrono::milliseconds;

/* Gloo's key-value store, kept by the coordinator. A failure becomes an exception here,
 * and a ps_err again where the mesh is asked for. */
class MemberStore : public gloo::rendezvous::Store {
  public:
    MemberStore(ps_member *member, int64_t timeout_ms)
        : member_(member), timeout_ms_(timeout_ms)
    {
    }

    void set(const std::string &key, const std::vector<char> &value) override
    {
        std::string name = PS_JOB_KEY_GLOO + key;
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
        std::string name = PS_JOB_KEY_GLOO + key;
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

/* Ends the waits of pairs that connect when the job is over or the time is up: Gloo waits
 * for five times its timeout, even where the other side is dead. */
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

    /* From here on ended() stays what it is. */
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
            mesh.transportContext_ =
                ps_gloo_pairs_create(device, mesh.rank, mesh.size, mesh.getTimeout());
            mesh.why_ = "another worker could not connect";
        }

        bool connect()
        {
            auto &pairs = mesh_.transportContext_;
            MemberStore store(member_, timeout_ms_);
            for (int peer : others())
                store.set(key(mesh_.rank, peer), pairs->getPair(peer)->address().bytes());
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

        /* Ends the wait of a peer that this rank could not connect to. */
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

} // namespace

std::shared_ptr<gloo::Context> ps_gloo_mesh_connect(const ps_gloo_mesh_options &options)
{
    auto mesh = std::make_shared<Mesh>(options.rank, options.world_size);
    mesh->setTimeout(options.call_timeout);
    mesh->connect(options.member, options.device, options.connect_timeout_ms);
    return mesh;
}
