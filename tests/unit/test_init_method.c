#include "init_method.h"

#include <unistd.h>

#include "check.h"
#include "temp_files.h"

TEST(reads_the_forms)
{
    ps_init_method m;
    assert_ok(ps_init_method_parse("tcp://node-1.example:29500", &m));
    assert_false(m.is_file);
    assert_string_equal(m.host, "node-1.example");
    assert_int_equal(m.port, 29500);
    assert_ok(ps_init_method_parse("tcp://[2001:db8::1]:5", &m));
    assert_string_equal(m.host, "2001:db8::1");
    assert_int_equal(m.port, 5);
    assert_ok(ps_init_method_parse("file:///shared/job 7", &m));
    assert_true(m.is_file);
    assert_string_equal(m.path, "/shared/job 7");
}

TEST(knows_this_host_by_its_address)
{
    assert_true(ps_init_method_is_loopback("tcp://127.0.0.1:29500"));
    assert_true(ps_init_method_is_loopback("tcp://[::1]:29500"));
    assert_true(ps_init_method_is_loopback("tcp://localhost:29500"));
    assert_false(ps_init_method_is_loopback("tcp://10.0.0.1:29500"));
    assert_false(ps_init_method_is_loopback("tcp://127.0.0.1"));
    assert_false(ps_init_method_is_loopback("file:///127.0.0.1"));
    assert_false(ps_init_method_is_loopback(NULL));
}

TEST(refuses_other_forms)
{
    static const char *const bad[] = {"",          "host:29500",  "tcp://host",
                                      "tcp://:1",  "tcp://h:",    "tcp://h:65536",
                                      "tcp://h:x", "tcp://h:-1",  "file://relative",
                                      "file:///",  "http://h:80", "env://"};
    ps_init_method m;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(ps_init_method_parse(bad[i], &m), PS_ERR_ARG);
        assert_true(strlen(ps_err_message()) > strlen(bad[i]));
    }
    char longer[2000] = "file:///";
    memset(longer + 8, 'x', sizeof longer - 9);
    assert_int_equal(ps_init_method_parse(longer, &m), PS_ERR_ARG);
}

IN_FOLDER(a_record_returns_and_only_its_owner_removes_it)
{
    const char *path = temp_path("rendezvous");
    const ps_init_record mine = {"10.0.0.7", 4321, 0x00ab000000000001u};
    const ps_init_record newer = {"2001:db8::1", 1, UINT64_MAX};
    ps_init_record r;
    assert_int_equal(ps_init_file_read(path, &r), PS_ERR_IO);
    assert_ok(ps_init_file_write(path, &mine));
    assert_ok(ps_init_file_read(path, &r));
    assert_string_equal(r.address, "10.0.0.7");
    assert_int_equal(r.port, 4321);
    assert_true(r.nonce == mine.nonce);
    // A new job takes the path over. The old job must not remove the new job's file.
    assert_ok(ps_init_file_write(path, &newer));
    ps_init_file_remove(path, mine.nonce);
    assert_ok(ps_init_file_read(path, &r));
    assert_true(r.nonce == UINT64_MAX);
    ps_init_file_remove(path, newer.nonce);
    assert_int_equal(access(path, F_OK), -1);
}

IN_FOLDER(refuses_other_files)
{
    const char *path = temp_path("rendezvous");
    static const char *const bad[] = {
        "",
        "pstrain-init",
        "pstrain-init 2 10.0.0.1 5 0000000000000001\n",
        "pstrain-init 1 10.0.0.1 5 0000000000000001", // cut off
        "pstrain-init 1 10.0.0.1 5 1\n",
        "pstrain-init 1 10.0.0.1 0 0000000000000001\n",
        "pstrain-init 1 10.0.0.1 70000 0000000000000001\n",
        "pstrain-init 1 somewhere 5 0000000000000001\n",
        "pstrain-init 1 10.0.0.1 5 000000000000000g\n",
    };
    ps_init_record r;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(temp_write("rendezvous", bad[i], strlen(bad[i])), 0);
        assert_error(ps_init_file_read(path, &r), PS_ERR_FORMAT, path);
    }
}

TEST(writing_where_it_cannot_names_the_path)
{
    const ps_init_record r = {"10.0.0.7", 4321, 1};
    assert_error(ps_init_file_write("/nonesuch/folder/file", &r), PS_ERR_IO,
                 "/nonesuch/folder/file");
}
