/* Stands in for gloo/common/memory.h, which Gloo does not install, and the headers of its
 * pairs ask for. This declares what these name of it: references to buffers, which only
 * Gloo itself makes and follows. Each holds what Gloo's own does, so that a pair has the
 * same size here and there. */
#ifndef PS_GLOO_MEMORY_HPP
#define PS_GLOO_MEMORY_HPP

#include <memory>

namespace gloo {

template <typename T> class NonOwningPtr final {
    std::shared_ptr<T> held;
};

template <typename T> class WeakNonOwningPtr final {
    std::weak_ptr<T> held;
};

} // namespace gloo

#endif
