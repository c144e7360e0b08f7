/* Tables of numbers as text: what is read, and what is said of what cannot be. */
#include "check.h"
#include "csv.h"
#include "table_fit.h"
#include "temp_files.h"

static const ps_wanted classes = {0};
static const ps_config_data plain = {.target = (char *)"",
                                     .columns = (char *)"",
                                     .drop = (char *)"",
                                     .categories = (char *)"",
                                     .test_by = (char *)"random"};
static ps_preprocessing *fitted; // of the set that was made last

static ps_err make_set(ps_err err, ps_table *table, const ps_wanted *wanted,
                       ps_dataset *out)
{
    ps_preprocessing_destroy(&fitted);
    *out = (ps_dataset){0};
    if (err == PS_OK) err = ps_table_fit(table, &plain, wanted, &fitted);
    if (err == PS_OK) err = ps_table_samples(table, fitted, out);
    ps_table_fini(table);
    return err;
}

static ps_err parse(const char *text, const ps_wanted *wanted, ps_dataset *out)
{
    const ps_csv_options o = {.data = &plain, .wanted = wanted};
    char *copy = strdup(text); // of its own size: a sanitizer sees what is beyond it
    ps_table table;
    assert_non_null(copy);
    const ps_err err = ps_csv_parse("t.csv", copy, strlen(text), &o, &table);
    free(copy);
    return make_set(err, &table, wanted, out);
}

static float value_at(const ps_dataset *set, int64_t i, int64_t k)
{
    float row[8];
    const ps_cell *cells;
    assert_ok(ps_table_row(set->table, i, NULL, &cells));
    ps_preprocessing_row(set->preprocessing, cells, row);
    return row[k];
}

static void done(ps_dataset *set)
{
    ps_dataset_fini(set);
    ps_preprocessing_destroy(&fitted);
}

static void check(const char *text, int64_t n, const float *values, const int32_t *labels)
{
    ps_dataset set;
    if (parse(text, &classes, &set) != PS_OK) fail_msg("%s: %s", text, ps_err_message());
    assert_int_equal(set.n, n);
    assert_int_equal(set.dims.n, 1);
    assert_int_equal(set.dims.d[0], 2);
    assert_true(set.is_float);
    for (int64_t i = 0; i < 2 * n; i++)
        assert_true(value_at(&set, i / 2, i % 2) == values[i]);
    assert_memory_equal(set.labels, labels, (size_t)n * sizeof *labels);
    done(&set);
}

TEST(numbers_and_a_class)
{
    const float values[] = {5.1f, 3.5f, -0.5f, 1e3f};
    const int32_t labels[] = {0, 2};
    check("5.1,3.5,0\n-0.5,1e3,2\n", 2, values, labels);
    check("5.1,3.5,0\n-0.5,1e3,2", 2, values, labels); // without an end of line
    check("a,b,class\n5.1,3.5,0\n-0.5,1e3,2\n", 2, values, labels);
    check("\"len, cm\";\"wid\";\"class\"\n5.1;3.5;0\n-0.5;1e3;2\n", 2, values, labels);
    check("5\" pipe,\"a \"\"b\"\"\r\n;\" ,c\n5.1,3.5,0\n-0.5,1e3,2", 2, values, labels);
    check("a;b;class\r\n5.1;3.5;0\r\n\r\n-0.5;1e3;2\r\n", 2, values, labels);
    check("5.1\t3.5\t0\n-0.5\t1e3\t2\n\n", 2, values, labels);
}

TEST(blanks_and_quotes)
{
    const float values[] = {5.1f, 3.5f};
    const int32_t labels[] = {1};
    check("\xef\xbb\xbf 5.1 , \"3.5\" ,1.0\n", 1, values, labels);
    check("\n\n  \n5.1,3.5,\"1\"\n   \n", 1, values, labels);
}

static void check_bad(const char *text, const char *says)
{
    ps_dataset set;
    assert_error(parse(text, &classes, &set), PS_ERR_FORMAT, says);
    done(&set);
}

TEST(the_last_column_may_be_a_number)
{
    const ps_wanted number = {.numbers = true, .n = 1};
    const ps_wanted unit = {.numbers = true, .n = 1, .unit = true};
    ps_dataset set;
    assert_ok(parse("x,y\n1,-0.5\n2,1e3\n", &number, &set));
    assert_int_equal(set.n, 2);
    assert_null(set.labels);
    assert_true(set.targets[0] == -0.5f && set.targets[1] == 1e3f);
    done(&set);
    assert_error(parse("1,0\n2,1.5\n", &unit, &set), PS_ERR_FORMAT,
                 "t.csv:2: column 2: \"1.5\" is not from 0");
    done(&set);
    assert_int_equal(parse("1,0\n2,nan\n", &number, &set), PS_ERR_FORMAT);
    done(&set);
}

TEST(samples_may_have_no_answer)
{
    const ps_wanted nothing = {.nothing = true};
    const float values[] = {5.1f, 3.5f, -0.5f, 1e3f};
    ps_dataset set;
    assert_ok(parse("a,b\n5.1,3.5\n-0.5,1e3\n", &nothing, &set));
    assert_int_equal(set.n, 2);
    assert_int_equal(set.dims.d[0], 2);
    for (int64_t i = 0; i < 4; i++)
        assert_true(value_at(&set, i / 2, i % 2) == values[i]);
    assert_true(set.labels[0] == 0 && set.labels[1] == 0);
    done(&set);
    assert_ok(parse("7\n8\n", &nothing, &set));
    assert_int_equal(set.dims.d[0], 1);
    done(&set);
    assert_error(parse("1,2\n1,2,0\n", &nothing, &set), PS_ERR_FORMAT,
                 "t.csv:2: 3 fields; the first line has 2");
    done(&set);
}

TEST(labels_may_be_ignored)
{
    const ps_wanted ignoring = {.n = 3, .may_be_ignored = true, .ignore_index = -100};
    ps_dataset set;
    assert_ok(parse("1,0\n2,-100\n", &ignoring, &set));
    assert_ok(ps_dataset_check(&set, &ignoring));
    assert_int_equal(set.labels[1], -100);
    done(&set);
}

/* Only a line without any number is one of names. */
TEST(the_first_line_is_never_lost)
{
    ps_dataset set;
    check_bad("5.1,,0\n4.9,3.0,1\n", "t.csv:1: column 2: \"\" is not a number");
    check_bad("NA,3.5,0\n4.9,3.0,1\n", "t.csv:1: column 1: \"NA\" is not a number");
    check_bad("5.1,?,0\n4.9,3.0,1\n", "t.csv:1: column 2: \"?\" is not a number");
    check_bad("\xe2\x88\x92"
              "5.1,3,0\n4.9,3.0,1\n",
              "column 1: \"\xe2\x88\x92"
              "5.1\" is");
    check_bad("5.1,3.5,setosa\n", "t.csv:1: column 3: \"setosa\" is not a number");
    check_bad(",0,1\n0,5.1,1\n", "t.csv:1: column 1: \"\" is not a number"); // pandas
    assert_ok(parse("\"len, cm\";wid;class\n1;2;0\n", &classes, &set));
    assert_string_equal(set.notes, "t.csv:1: names of columns: \"len, cm\", wid, class");
    assert_null(set.doubts);
    done(&set);
    assert_ok(parse("0,1,2\n5.1,3.5,0\n", &classes, &set));
    assert_int_equal(set.n, 2);
    assert_null(set.notes);
    assert_non_null(strstr(set.doubts, "t.csv:1: 0, 1, 2, ... is taken as a sample"));
    done(&set);
}

TEST(mistakes_are_named)
{
    check_bad("a,\"b,c\n1,2,0\n", "t.csv:1: column 2: \"b,c\n1,2,0\n\" is not a whole");
    check_bad("a,b,c\n1,\"2\"3,0\n", "t.csv:2: column 2: \"2\" is not all of the field");
    check_bad("\"a\nb\",b,c\n1,x,0\n", "t.csv:3: column 2: \"x\"");
    check_bad("", "t.csv: the file is empty");
    check_bad("a,b,c\r1,2,0\r3,4,1\r", "t.csv: its lines end in CR alone: tr");
    check_bad("\n \n", "the file is empty");
    check_bad("1\n2\n", "t.csv:1: only one column");
    check_bad("1,2,0\n1,2\n", "t.csv:2: 2 fields; the first line has 3");
    check_bad("1,2,0\n1,2,3,0\n", "t.csv:2: 4 fields");
    check_bad("a,b,c\n\n1,x,0\n", "t.csv:3: column 2: \"x\" is not a number");
    check_bad("1,2,0\n1,,0\n", "t.csv:2: column 2: \"\" is not a number");
    check_bad("1,2,0\n1,nan,0\n", "\"nan\" is not a number");
    check_bad("nan,2,0\n1,1,0\n", "t.csv:1: column 1: \"nan\" is not a number");
    check_bad("1,1e999,0\n1,1,0\n", "t.csv:1: column 2: \"1e999\" is not a number");
    check_bad("1,2,0\n1,-1e99,0\n", "t.csv:2: column 2: \"-1e99\" is not within float32");
    check_bad("1,2,0\n1,1/2,0\n", "\"1/2\" is not a number");
    check_bad("1,2,0\n1,2,-1\n", "column 3: \"-1\" is not a class");
    check_bad("1,2,0\n1,2,0.5\n", "\"0.5\" is not a class");
    check_bad("1,2,0\n1,2,3e9\n", "\"3e9\" is not a class");
    check_bad("1,2,0\n1,2,cat\n", "\"cat\" is not a class");
}

TEST(what_is_no_number_has_a_mend)
{
    check_bad("a,b,c\n1,Paris,0\n", "is not a number: with data.target a column may");
    check_bad("1,Paris,0\n1,2,0\n", "(a line of names has none): with data.target");
    check_bad("1,2,0\n1,,0\n", "is not a number: fill it, or leave out the line");
    check_bad("1,2,0\n1,NaN,0\n", "fill it, or leave out the line");
    check_bad("1,2,0\n1,N/A,0\n", "fill it, or leave out the line");
    check_bad("1,2,0\n1,2,\n", "(a whole number from 0): fill it");
    check_bad("1;2;0\n1;-0,903;0\n", "\"-0,903\" is not a number: write a point for the");
    check_bad("1,2,0\n1,\"1,5e3\",0\n", "write a point for the comma");
    check_bad("1,2,0\n1,1e999,0\n", "write a finite number");
    check_bad("1,2,0\n1,2,cat\n", "(a whole number from 0): for classes that are");
    check_bad("1,2,cat\n1,2,0\n", "has none): for classes that are");
    check_bad("1,2,0\n1,2,0.5\n", "for numbers, set model.loss to mse");
}

IN_FOLDER(files_are_joined)
{
    char *paths[] = {strdup(temp_path("a")), strdup(temp_path("b"))};
    assert_int_equal(temp_write("a", "a,b\n1,0\n", 8), 0);
    assert_int_equal(temp_write("b", "2,1\n3,0\n", 8), 0);
    const ps_csv_options o = {.data = &plain, .wanted = &classes};
    ps_table table;
    ps_dataset set;
    assert_ok(make_set(ps_csv_read(paths, 2, &o, &table), &table, &classes, &set));
    assert_int_equal(set.n, 3);
    for (int i = 0; i < 3; i++)
        assert_true(value_at(&set, i, 0) == (float)(i + 1));
    done(&set);
    assert_int_equal(temp_write("b", "1,2,0\n", 6), 0);
    assert_error(ps_csv_read(paths, 2, &o, &table), PS_ERR_FORMAT,
                 "3 columns; the file before has 2");
    ps_table_fini(&table);
    assert_int_equal(temp_write("b", "b,a\n1,0\n", 8), 0);
    assert_error(ps_csv_read(paths, 2, &o, &table), PS_ERR_FORMAT,
                 ":1: column 1 is named \"b\", and \"a\" in a file");
    ps_table_fini(&table);
    remove(paths[0]);
    assert_int_equal(ps_csv_read(paths, 1, &o, &table), PS_ERR_IO);
    ps_table_fini(&table);
    free(paths[0]);
    free(paths[1]);
}
