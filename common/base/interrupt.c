#include "interrupt.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "clock.h"
#include "event.h"
#include "log.h"
#include "tell.h"
#include "thread.h"

enum { SAME_WISH_NS = 1000000000 };

static ps_event came;            // constant after init
static sigset_t awaited;         // likewise
static atomic_int signal_number; // 0: none yet

bool ps_end_signal_again(ps_end_signal *first, int number, uint64_t now_ns)
{
    if (first->number == 0) {
        *first = (ps_end_signal){.number = number, .at_ns = now_ns};
        return false;
    }
    return number == first->number || now_ns - first->at_ns > SAME_WISH_NS;
}

static void interrupt_note(int number)
{
    int none = 0;
    ps_tell("interrupted", "{s:s+}", "signal", "SIG", sigabbrev_np(number));
    PS_INFO("interrupted", "signal=SIG%s again=\"at once\"", sigabbrev_np(number));
    if (!atomic_compare_exchange_strong(&signal_number, &none, number)) return;
    ps_event_set(&came);
}

/* Ends the process by the signal's default action. */
static void die_of(int number)
{
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, number);
    signal(number, SIG_DFL);
    pthread_sigmask(SIG_UNBLOCK, &one, NULL);
    raise(number);
}

static void *wait_for_signals(void *arg)
{
    ps_end_signal first = {0};
    for (int number; sigwait(&awaited, &number) == 0;) {
        if (ps_end_signal_again(&first, number, ps_clock_ns())) die_of(number);
        interrupt_note(number);
    }
    return NULL;
}

static ps_err interrupt_start_thread(void)
{
    ps_thread thread;
    PS_TRY(ps_thread_start(&thread, "signals", wait_for_signals, NULL));
    (void)pthread_detach(thread.id); // it lives as long as the process
    return PS_OK;
}

void ps_interrupt_let_writes_fail(void)
{
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

ps_err ps_interrupt_init(void)
{
    ps_interrupt_let_writes_fail();
    atomic_store(&signal_number, 0);
    PS_TRY(ps_event_init(&came));
    sigemptyset(&awaited);
    sigaddset(&awaited, SIGINT);
    sigaddset(&awaited, SIGTERM);
    if (pthread_sigmask(SIG_BLOCK, &awaited, NULL) != 0)
        return ps_err_errno(PS_ERR_INTERNAL, "blocking signals");
    return interrupt_start_thread();
}

int ps_interrupt_signal(void)
{
    return atomic_load(&signal_number);
}

bool ps_interrupted(void)
{
    return ps_interrupt_signal() != 0;
}

static _Thread_local struct {
    ps_interrupt_hook fn;
    void *ctx;
} hook;

void ps_interrupt_set_hook(ps_interrupt_hook fn, void *ctx)
{
    hook.fn = fn;
    hook.ctx = ctx;
}

ps_err ps_interrupt_ask_hook(void)
{
    if (!hook.fn || !hook.fn(hook.ctx)) return PS_OK;
    return ps_err_set(PS_ERR_INTERRUPTED, "interrupted by the program");
}

ps_deadline ps_interrupt_slice(ps_deadline deadline)
{
    const ps_deadline soon = ps_deadline_in_ms(PS_HOOK_MS);
    return hook.fn && soon.at_ns < deadline.at_ns ? soon : deadline;
}

ps_err ps_interrupt_check(void)
{
    PS_TRY(ps_interrupt_ask_hook());
    int number = ps_interrupt_signal();
    if (number == 0) return PS_OK;
    return ps_err_set(PS_ERR_INTERRUPTED, "interrupted by SIG%s", sigabbrev_np(number));
}

int ps_interrupt_fd(void)
{
    return ps_event_fd(&came);
}
