#include "gloo_pairs.hpp"

#ifdef PS_GLOO_PAIRS_LISTEN
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <sys/epoll.h>
#include <sys/eventfd.h>
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

    /* Here, while handleEvents is still this class's. */
    ~Pair() override
    {
        std::lock_guard<std::mutex> lock(m_);
        if (state_ != CLOSED) changeState(CLOSED);
    }

    /* As Gloo's, but what is thrown breaks the pair, under the same lock. Another thread
     * that holds the lock may be closing the pair, and wait for this one. */
    void handleEvents(int events) override
    {
        std::unique_lock<std::mutex> lock(m_, std::try_to_lock);
        if (!lock || state_ == CLOSED) return;
        try {
            handle(events);
        } catch (const std::exception &e) {
            // Gloo would take the descriptor from its loop, which does not know that of a
            // connection just accepted.
            if (state_ == LISTENING && fd_ >= 0) {
                ::close(fd_);
                fd_ = -1;
            }
            signalException(e.what());
        }
    }

  private:
    void handle(int events)
    {
        if (state_ == CONNECTED) return handleReadWrite(events);
        if (state_ == LISTENING) return handleListening();
        if (state_ == CONNECTING) return handleConnecting();
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

class EventFd {
  public:
    EventFd() : fd(eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK))
    {
        if (fd < 0)
            throw gloo::Exception(std::string("eventfd: ") + std::strerror(errno));
    }

    ~EventFd()
    {
        ::close(fd);
    }

    void take()
    {
        eventfd_t count;
        (void)eventfd_read(fd, &count);
    }

    const int fd;
};

/* Keeps Gloo's thread from all pairs. A pair listens before its constructor returns, and
 * until then a connection would find Gloo's own handleEvents. */
class Pause : public tcp::Handler {
  public:
    explicit Pause(tcp::Device &device) : device_(device)
    {
        device_.registerDescriptor(event_.fd, EPOLLIN, this);
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [this] { return paused_; });
    }

    ~Pause() override
    {
        {
            std::unique_lock<std::mutex> lock(mutex_);
            over_ = true;
            changed_.notify_all();
            changed_.wait(lock, [this] { return !paused_; });
        }
        device_.unregisterDescriptor(event_.fd, this);
    }

    void handleEvents(int) override // once: it takes the event
    {
        event_.take();
        std::unique_lock<std::mutex> lock(mutex_);
        paused_ = true;
        changed_.notify_all();
        changed_.wait(lock, [this] { return over_; });
        paused_ = false;
        changed_.notify_all(); // before the lock goes: nothing here is touched after it
    }

  private:
    tcp::Device &device_;
    EventFd event_;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool paused_ = false, over_ = false;
};

} // namespace
#endif

std::shared_ptr<gloo::transport::Context>
ps_gloo_pairs_create(const std::shared_ptr<gloo::transport::Device> &device, int rank,
                     int size, std::chrono::milliseconds timeout)
{
#ifdef PS_GLOO_PAIRS_LISTEN
    auto over_tcp = std::dynamic_pointer_cast<tcp::Device>(device);
    if (!over_tcp) throw gloo::Exception("the device is not one of TCP");
    std::shared_ptr<gloo::transport::Context> context =
        std::make_shared<Context>(over_tcp, rank, size);
    Pause pause(*over_tcp);
#else
    auto context = device->createContext(rank, size);
#endif
    context->setTimeout(timeout);
    for (int peer = 0; peer < size; peer++)
        if (peer != rank) context->createPair(peer);
    return context;
}
