/* The probe between two processes on loopback, and what cannot be probed. */
#include <jansson.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/free_port.h"
#include "check.h"
#include "probe.h"

static ps_err probe(const char *what, FILE *out)
{
    const ps_curve plain = {0};
    return ps_probe_run(&(ps_probe_options){.what = what, .curve = &plain}, out);
}

TEST(test_measures_loopback)
{
    int in[2], out[2];
    const int port = test_free_port();
    assert_int_equal(pipe(in), 0);
    assert_int_equal(pipe(out), 0);
    pid_t pid = fork();
    if (pid == 0) { // serves until its standard input ends
        dup2(in[0], 0);
        close(in[1]);
        FILE *f = fdopen(out[1], "w");
        char what[32];
        snprintf(what, sizeof what, "serve:%d", port);
        _exit(probe(what, f) == PS_OK ? 0 : 1);
    }
    char line[64] = "", what[32];
    assert_true(read(out[0], line, sizeof line - 1) > 0);
    assert_non_null(strstr(line, "serving"));
    snprintf(what, sizeof what, "127.0.0.1:%d", port);
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    assert_ok(probe(what, f));
    fclose(f);
    json_t *answer = json_loads(text, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(answer, "address")),
                        "127.0.0.1");
    double us = json_number_value(json_object_get(answer, "rtt_us"));
    assert_true(us > 0.5 && us < 100000);
    assert_true(json_number_value(json_object_get(answer, "mbit_s")) > 10);
    json_decref(answer);
    free(text);
    close(in[0]);
    close(in[1]);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

TEST(test_refusals)
{
    const char *bad[] = {"", "serve", "serve:0", "serve:70000", "host", ":80", "host:x"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(probe(bad[i], stdout), PS_ERR_ARG);
    assert_error(probe("127.0.0.1:1", stdout), PS_ERR_NET, "127.0.0.1:1");
    assert_int_equal(probe("no-such-host.invalid:80", stdout), PS_ERR_NET);
}
