/* The YAML tree: lines, duplicates, aliases and their bombs, overrides. */
#include "yaml_tree.h"

#include <unistd.h>

#include "check.h"
#include "temp_files.h"

static ps_yaml *parsed(const char *text)
{
    ps_yaml *tree = NULL;
    assert_ok(ps_yaml_parse("t.yaml", text, strlen(text), &tree));
    return tree;
}

static void assert_refused(const char *text, const char *message_part)
{
    ps_yaml *tree = NULL;
    assert_int_equal(ps_yaml_parse("t.yaml", text, strlen(text), &tree), PS_ERR_CONFIG);
    assert_null(tree);
    if (!strstr(ps_err_message(), message_part))
        fail_msg("'%s' lacks '%s'", ps_err_message(), message_part);
}

TEST(tree_has_kinds_lines_and_keys)
{
    ps_yaml *t = parsed("# a comment\n"
                        "optimizer:\n"
                        "  name: adam\n"
                        "  betas: [0.9,\n"
                        "          0.99]\n"
                        "model:\n"
                        "  layers:\n"
                        "    - relu\n"
                        "    - conv2d: {out: 3}\n");
    const ps_yaml *name = ps_yaml_path(t, "optimizer.name");
    assert_string_equal(name->text, "adam");
    assert_int_equal(name->line, 3);
    assert_string_equal(name->file, "t.yaml");
    const ps_yaml *betas = ps_yaml_path(t, "optimizer.betas");
    assert_int_equal(betas->kind, PS_YAML_LIST);
    assert_int_equal(betas->n_items, 2);
    assert_int_equal(betas->items[1]->line, 5);
    const ps_yaml *layers = ps_yaml_path(t, "model.layers");
    assert_int_equal(layers->line, 7);
    assert_string_equal(layers->items[1]->items[0]->key, "conv2d");
    assert_null(ps_yaml_path(t, "optimizer.name.more"));
    assert_null(ps_yaml_path(t, "optim"));
    ps_yaml_destroy(&t);
    assert_null(t);
}

TEST(empty_file_is_an_empty_map)
{
    ps_yaml *t = parsed("# nothing\n");
    assert_int_equal(t->kind, PS_YAML_MAP);
    assert_int_equal(t->n_items, 0);
    ps_yaml_destroy(&t);
}

TEST(aliases_are_copies)
{
    ps_yaml *t = parsed("a: &x {k: [1, 2]}\nb: *x\n");
    const ps_yaml *k = ps_yaml_path(t, "b.k");
    assert_int_equal(k->n_items, 2);
    assert_string_equal(k->items[1]->text, "2");
    assert_ptr_not_equal(k, ps_yaml_path(t, "a.k"));
    ps_yaml_destroy(&t);
}

TEST(bad_yaml_names_the_line)
{
    assert_refused("a: 1\nb: [1, 2\nc: 3\n", "t.yaml:3");
    assert_refused("a: 1\na: 2\n", "t.yaml:2: a: given twice, in line 1, too");
    assert_refused("a: &x {k: 1}\nb:\n  <<: *x\n", "t.yaml:3: YAML's merge key");
    assert_refused("a: *nope\n", "unknown anchor *nope");
    assert_refused("a: &x [*x]\n", "unknown anchor *x");
    assert_refused("? [a, b]\n: 1\n", "a key has to be a word");
    assert_refused("a: \"\\0\"\n", "NUL");
    assert_refused("a: 1\n---\nb: 1\n", "second document");
    assert_refused("a:\n\tb: 1\n", "t.yaml:2: bad YAML: a tab indents this line");
    assert_refused("a:\n  b: c\n\td: 1\n", "t.yaml:3: bad YAML: a tab indents this line");
}

TEST(patterns_without_quotes_are_explained)
{
    assert_refused("a: [*.bias]\n", "a text that begins with * stands in quotes");
    assert_refused("a: [*bias]\n", "unknown anchor *bias: a text that begins with *");
}

TEST(bombs_are_errors)
{
    assert_refused("a: &a [x,x,x,x,x,x,x,x,x,x]\n"
                   "b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n"
                   "c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
                   "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\n"
                   "e: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\n",
                   "more than 65536 values");
    char deep[400];
    memset(deep, '[', 200);
    memset(deep + 200, ']', 199);
    deep[399] = '\0';
    assert_refused(deep, "nested deeper than 64");
    // A long text, 100 times.
    size_t n = 60000;
    char *text = calloc(1, n + 2000), *p = text;
    assert_non_null(text);
    p += sprintf(p, "a: &a ");
    memset(p, 'x', n);
    p += n;
    p += sprintf(p, "\nb: [");
    for (int i = 0; i < 100; i++)
        p += sprintf(p, "*a, ");
    strcpy(p, "]\n");
    assert_refused(text, "bytes of text");
    free(text);
}

TEST(too_large_a_file_is_an_error)
{
    size_t n = (1 << 20) + 1;
    char *text = malloc(n);
    assert_non_null(text);
    memset(text, ' ', n);
    ps_yaml *t = NULL;
    assert_int_equal(ps_yaml_parse("t.yaml", text, n, &t), PS_ERR_CONFIG);
    assert_ok(ps_yaml_parse("t.yaml", text, n - 1, &t));
    ps_yaml_destroy(&t);
    free(text);
}

IN_FOLDER(load_reads_files)
{
    const char *path = temp_path("file");
    assert_int_equal(temp_write("file", "a: 1\n", 5), 0);
    ps_yaml *t = NULL;
    assert_ok(ps_yaml_load(path, &t));
    assert_string_equal(ps_yaml_path(t, "a")->text, "1");
    ps_yaml_destroy(&t);
    unlink(path);
    assert_int_equal(ps_yaml_load(path, &t), PS_ERR_IO);
    assert_int_equal(ps_yaml_load("/tmp", &t), PS_ERR_IO);
}

TEST(set_replaces_and_makes)
{
    ps_yaml *t = parsed("a: {b: 1, c: 2}\nlist: [1]\n");
    assert_ok(ps_yaml_set(&t, "a.b", "[0.9, 0.99]"));
    assert_ok(ps_yaml_set(&t, "x.y.z", "# not: a comment"));
    assert_ok(ps_yaml_set(&t, "a", "{q: 'w'}"));
    assert_ok(ps_yaml_set(&t, "a.e", ""));
    assert_string_equal(ps_yaml_path(t, "x.y.z")->text, "# not: a comment");
    assert_string_equal(ps_yaml_path(t, "a.q")->text, "w");
    assert_string_equal(ps_yaml_path(t, "a.e")->text, "");
    assert_null(ps_yaml_path(t, "a.b"));
    assert_string_equal(ps_yaml_path(t, "a.q")->file, "--set");
    assert_int_equal(ps_yaml_path(t, "a.q")->line, 0);

    assert_int_equal(ps_yaml_set(&t, "list.b", "1"), PS_ERR_CONFIG);
    assert_int_equal(ps_yaml_set(&t, "a..b", "1"), PS_ERR_CONFIG);
    assert_error(ps_yaml_set(&t, "a.b", "[1"), PS_ERR_CONFIG, "a.b=[1");
    ps_yaml_destroy(&t);

    assert_ok(ps_yaml_set(&t, "a.b", "7")); // from nothing
    long long v;
    assert_ok(ps_yaml_int(ps_yaml_path(t, "a.b"), 0, 7, &v));
    assert_int_equal(v, 7);
    ps_yaml_destroy(&t);
}

TEST(scalars_are_checked)
{
    ps_yaml *t = parsed("i: -12\nd: 1e-3\nq: 1/4\nb: Off\nn: nan\nl: [1]\nh: 0x10\n"
                        "big: 9223372036854775808\n");
    long long i;
    double d;
    int b;
    assert_ok(ps_yaml_int(ps_yaml_path(t, "i"), -20, 20, &i));
    assert_int_equal(i, -12);
    assert_int_equal(ps_yaml_int(ps_yaml_path(t, "i"), 0, 20, &i), PS_ERR_CONFIG);
    assert_string_equal(ps_err_message(), "t.yaml:1: i: -12 is not within 0 .. 20");
    assert_int_equal(ps_yaml_int(ps_yaml_path(t, "d"), 0, 20, &i), PS_ERR_CONFIG);
    assert_int_equal(ps_yaml_int(ps_yaml_path(t, "big"), 0, 20, &i), PS_ERR_CONFIG);
    assert_ok(ps_yaml_double(ps_yaml_path(t, "d"), &d));
    assert_true(d == 1e-3);
    assert_ok(ps_yaml_double(ps_yaml_path(t, "q"), &d));
    assert_true(d == 0.25);
    assert_int_equal(ps_yaml_double(ps_yaml_path(t, "n"), &d), PS_ERR_CONFIG);
    assert_int_equal(ps_yaml_double(ps_yaml_path(t, "h"), &d), PS_ERR_CONFIG);
    assert_int_equal(ps_yaml_double(ps_yaml_path(t, "l"), &d), PS_ERR_CONFIG);
    assert_ok(ps_yaml_bool(ps_yaml_path(t, "b"), &b));
    assert_int_equal(b, 0);
    assert_int_equal(ps_yaml_bool(ps_yaml_path(t, "i"), &b), PS_ERR_CONFIG);
    ps_yaml_destroy(&t);
}
