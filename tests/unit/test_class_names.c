#include "check.h"
#include "class_names.h"
#include "temp_files.h"

static ps_class_names read_text(const char *text)
{
    ps_class_names names;
    assert_int_equal(temp_write("names.txt", text, strlen(text)), 0);
    assert_ok(ps_class_names_read(temp_path("names.txt"), &names));
    return names;
}

static void assert_names(const char *text, int64_t n, const char *const *want)
{
    ps_class_names names = read_text(text);
    assert_int_equal(names.n, n);
    for (int64_t i = 0; i < n; i++)
        assert_string_equal(ps_class_name(&names, i), want[i]);
    assert_null(ps_class_name(&names, n));
    assert_null(ps_class_name(&names, -1)); // as train.ignore_index may be
    ps_class_names_fini(&names);
}

IN_FOLDER(a_line_is_a_name)
{
    static const char *const want[] = {"airplane", "fire truck", "cat"};
    assert_names("airplane\nfire truck\ncat\n", 3, want);
    assert_names("airplane\nfire truck\ncat", 3, want);
    assert_names("airplane\r\n \tfire truck  \r\ncat\r\n \r\n\r\n", 3, want);
    assert_names("\xef\xbb\xbf"
                 "airplane\nfire truck\ncat\n",
                 3, want); // UTF-8's mark
    assert_names("", 0, want);
    assert_names("\n", 0, want);
}

IN_FOLDER(a_file_that_is_no_list_of_names_is_refused)
{
    ps_class_names names;
    const size_t bytes = (1 << 20) + 1;
    char *text = calloc(bytes, 1);
    assert_non_null(text);
    memset(text, 'x', bytes);
    assert_int_equal(temp_write("large.txt", text, bytes), 0);
    free(text);
    static const char wide[] = "\xff\xfe"
                               "a\0\n\0b\0"; // UTF-16
    assert_int_equal(temp_write("wide.txt", wide, sizeof wide - 1), 0);
    assert_error(ps_class_names_read(temp_path("wide.txt"), &names), PS_ERR_FORMAT,
                 "iconv -f utf-16");
    assert_int_equal(temp_write("gap.txt", "a\nb\n\nc\n", 7), 0);
    assert_error(ps_class_names_read(temp_path("gap.txt"), &names), PS_ERR_FORMAT,
                 "gap.txt:3: an empty line, and names behind it");
    assert_int_equal(names.n, 0);
    const char *path = temp_path("large.txt");
    assert_int_equal(ps_class_names_read(path, &names), PS_ERR_FORMAT);
    assert_int_equal(names.n, 0);
    path = temp_path("missing.txt");
    assert_int_equal(ps_class_names_read(path, &names), PS_ERR_IO);
    assert_int_equal(ps_class_names_read(folder.path, &names), PS_ERR_IO);
}

IN_FOLDER(saved_names_come_back_whole_or_not_at_all)
{
    ps_class_names names = read_text("a\nb\xff,\"\ncc\n"), back;
    char bytes[16];
    FILE *file = fmemopen(bytes, sizeof bytes, "w");
    ps_class_names_save(&names, 3, file);
    const long n = ftell(file);
    fclose(file);
    assert_int_equal(n, 10);
    for (long cut = 1; cut <= n; cut++) {
        file = fmemopen(bytes, (size_t)cut, "r");
        const ps_err err = ps_class_names_load(file, 3, "share", &back);
        fclose(file);
        assert_int_equal(err, cut == n ? PS_OK : PS_ERR_FORMAT);
        assert_int_equal(back.n, cut == n ? 3 : 0);
    }
    for (int i = 0; i < 3; i++)
        assert_string_equal(back.names[i], names.names[i]);
    ps_class_names_fini(&names);
    ps_class_names_fini(&back);
}
