#include "gloo_pairs.hpp"

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <thread>
#include <unistd.h>

#include <gloo/common/error.h>
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/loop.h>
#include <gloo/transport/tcp/pair.h>

namespace {

namespace tcp = gloo::transport::tcp;

class Pair : public tcp::Pair {
  public:
    using tcp::Pair::Pair;

    void handleEvents(int events) override
    {
        std::string why;
        try {
            tcp::Pair::handleEvents(events);
            return;
        } catch (const std::exception &e) {
            why = e.what();
        }
        break_off(why);
    }

  private:
    static constexpr int TRIES = 1000;

    /* Another thread that holds the lock may be closing the pair, and wait for this one:
     * so there is an end to the waiting. */
    void break_off(const std::string &why)
    {
        std::unique_lock<std::mutex> lock(m_, std::try_to_lock);
        for (int i = 0; !lock && i < TRIES; i++) {
            std::this_thread::sleep_for(std::chrono::microseconds(100));
            lock.try_lock();
        }
        if (!lock || state_ == CLOSED) return;
        // It has accepted a connection, which the loop does not know yet; Gloo would take
        // it from the loop.
        if (state_ == LISTENING && fd_ >= 0) {
            ::close(fd_);
            fd_ = -1;
        }
        signalException(why);
    }
};

class Context : public tcp::Context {
  public:
    using tcp::Context::Context;

    std::unique_ptr<gloo::transport::Pair> &createPair(int peer) override
    {
        pairs_[peer] = std::make_unique<Pair>(this, device_.get(), peer, getTimeout());
        return pairs_[peer];
    }
};

/* Keeps Gloo's thread from all pairs. A pair listens before its constructor returns, and
 * until then a connection would find Gloo's own handleEvents. */
class Pause : public tcp::Handler {
  public:
    explicit Pause(tcp::Device &device)
        : device_(device), fd_(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK))
    {
        if (fd_ < 0)
            throw gloo::Exception(std::string("eventfd: ") + std::strerror(errno));
        device_.registerDescriptor(fd_, EPOLLIN, this);
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return paused_; });
    }

    ~Pause() override
    {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            over_ = true;
        }
        changed_.notify_all();
        device_.unregisterDescriptor(fd_, this);
        ::close(fd_);
    }

    void handleEvents(int) override
    {
        std::unique_lock<std::mutex> lock(mutex_);
        paused_ = true;
        changed_.notify_all();
        changed_.wait(lock, [this] { return over_; });
    }

  private:
    tcp::Device &device_;
    int fd_;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool paused_ = false, over_ = false;
};

} // namespace

std::shared_ptr<gloo::transport::Context>
ps_gloo_pairs_create(const std::shared_ptr<gloo::transport::Device> &device, int rank,
                     int size, std::chrono::milliseconds timeout)
{
    auto over_tcp = std::dynamic_pointer_cast<tcp::Device>(device);
    if (!over_tcp) throw gloo::Exception("the device is not one of TCP");
    auto context = std::make_shared<Context>(over_tcp, rank, size);
    context->setTimeout(timeout);
    Pause pause(*over_tcp);
    for (int peer = 0; peer < size; peer++)
        if (peer != rank) context->createPair(peer);
    return context;
}
