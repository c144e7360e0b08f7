/* Tables by the names of their columns: what becomes of the cells. Expected values are
 * those of numpy's mean and std, and of pandas.get_dummies. */
#include "check.h"
#include "csv.h"
#include "table_fit.h"
#include "temp_files.h"
#include "test_part.h"

static const ps_wanted classes = {.n = 3}, number = {.numbers = true, .n = 1};
static const ps_wanted nothing = {.nothing = true};

static ps_preprocessing *fitted; // of the test that runs

static ps_config_data data_of(const char *target)
{
    return (ps_config_data){.target = (char *)target,
                            .columns = (char *)"",
                            .drop = (char *)"",
                            .categories = (char *)"",
                            .test_by = (char *)"random",
                            .standardize = true};
}

static ps_err read_table(const char *text, const ps_csv_options *o, ps_table *out)
{
    char *copy = strdup(text);
    assert_non_null(copy);
    const ps_err err = ps_csv_parse("t.csv", copy, strlen(text), o, out);
    free(copy);
    return err;
}

/* Reads, and fits unless that was done. */
static ps_err parse(const char *text, const ps_config_data *data, const ps_wanted *wanted,
                    ps_dataset *out)
{
    const ps_csv_options o = {
        .data = data, .wanted = wanted, .known = fitted, .keys = true};
    ps_table table;
    *out = (ps_dataset){0};
    ps_err err = read_table(text, &o, &table);
    if (err == PS_OK && !fitted) err = ps_table_fit(&table, data, wanted, &fitted);
    if (err == PS_OK) err = ps_table_samples(&table, fitted, out);
    ps_table_fini(&table);
    return err;
}

static void done(ps_dataset *set)
{
    ps_dataset_fini(set);
    ps_preprocessing_destroy(&fitted);
}

static void check_row(const ps_dataset *set, int64_t i, const double *expected)
{
    float row[16];
    ps_cell room[16];
    const ps_cell *cells;
    assert_ok(ps_table_row(set->table, i, room, &cells));
    ps_preprocessing_row(set->preprocessing, cells, row);
    for (int64_t k = 0; k < set->dims.d[0]; k++)
        if (fabs(row[k] - expected[k]) > 1e-6)
            fail_msg("row %d, input %d: %g, not %g", (int)i, (int)k, (double)row[k],
                     expected[k]);
}

static const char houses[] = "id,city,area,price\n"
                             "a1,Rome,10,100\n"
                             "a2,Oslo,20,300\n"
                             "a3,Rome,60,200\n"
                             "a4,7,30,400\n";

/* numpy.std([10, 20, 60, 30]) = 18.7082869, of the prices 111.8033989. */
TEST(numbers_are_scaled_and_texts_become_categories)
{
    ps_config_data data = data_of("price\n");
    data.drop = (char *)"id\n";
    ps_dataset set, again;
    assert_ok(parse(houses, &data, &number, &set));
    assert_int_equal(set.dims.d[0], 4); // 7, Oslo, Rome, area
    check_row(&set, 0, (double[]){0, 0, 1, -20 / 18.708286933869708});
    check_row(&set, 2, (double[]){0, 0, 1, 30 / 18.708286933869708});
    check_row(&set, 3, (double[]){1, 0, 0, 0});
    assert_true(fabsf(set.targets[0] - -150 / 111.80339887498948f) < 1e-6f);
    assert_true(ps_preprocessing_scales(fitted, 1));
    assert_false(ps_preprocessing_scales(fitted, 2));
    assert_true(fabs(ps_preprocessing_number(fitted, 0, set.targets[0]) - 100) < 1e-4);
    assert_true(fabs(ps_preprocessing_number(fitted, 0, 1) - 361.80339887) < 1e-7);
    assert_int_equal(ps_preprocessing_digits(fitted, 0), 9);
    assert_true(fabs(ps_preprocessing_unit(fitted, 0) - 111.80339887498948) < 1e-9);

    // Other lines, in another order, with a text that is new: by the same state.
    assert_ok(parse("price,area,more,city,id\n,10,1,Paris,9\n,45,1,7.0,8\n", &data,
                    &nothing, &again));
    assert_false(again.answered);
    check_row(&again, 0, (double[]){0, 0, 0, -20 / 18.708286933869708});
    check_row(&again, 1, (double[]){1, 0, 0, 15 / 18.708286933869708});
    assert_string_equal(again.keys.names[1], "8");
    assert_non_null(strstr(again.doubts, "1 cell of \"city\" has a text that"));
    assert_non_null(strstr(again.doubts, ", such as \"Paris\""));
    ps_dataset_fini(&again);
    assert_ok(parse(houses, &data, &nothing, &again));
    assert_true(again.answered && again.targets[1] == set.targets[1]);
    ps_dataset_fini(&again);
    done(&set);
}

/* Names and a line of that many columns; in each stands the number of its name. Owned. */
static char *wide_text(int n, int step)
{
    char *text = malloc((size_t)n * 16 + 8), *end = text;
    assert_non_null(text);
    for (int line = 0; line < 2; line++) {
        for (int i = 0; i < n; i++)
            end += sprintf(end, line ? "%d," : "c%d,", (int)((int64_t)i * step % n));
        end += sprintf(end, line ? "1\n" : "y\n");
    }
    return text;
}

TEST(a_column_among_many_is_found_at_once)
{
    enum { COLUMNS = 40000 };
    ps_config_data data = data_of("y\n");
    data.standardize = false;
    for (int again = 0; again < 2; again++) { // by the state, in another order
        char *text = wide_text(COLUMNS, again ? 17 : 7);
        float *row = calloc(COLUMNS, sizeof *row);
        ps_cell *room = calloc(COLUMNS + 1, sizeof *room);
        const ps_cell *cells;
        ps_dataset set;
        assert_non_null(row);
        assert_non_null(room);
        assert_ok(parse(text, &data, &number, &set));
        assert_ok(ps_table_row(set.table, 0, room, &cells));
        ps_preprocessing_row(set.preprocessing, cells, row);
        for (int64_t k = 0; k < COLUMNS; k++)
            assert_true(row[k] == (float)(k * 7 % COLUMNS));
        ps_dataset_fini(&set);
        free(room);
        free(row);
        free(text);
    }
    char *other = wide_text(COLUMNS, 1);
    for (char *at = other; (at = strchr(at, 'c')) != NULL;)
        *at = 'd';
    ps_dataset set;
    assert_error(parse(other, &data, &number, &set), PS_ERR_FORMAT,
                 "columns are missing: \"c0\" (rename \"d0\", if it is meant), \"c7\" (");
    free(other);
    ps_preprocessing_destroy(&fitted);
}

TEST(a_state_goes_through_its_text)
{
    ps_config_data data = data_of("price\n");
    ps_preprocessing *copy = NULL;
    char *text = NULL, *again = NULL;
    ps_dataset set;
    assert_ok(parse(houses, &data, &number, &set));
    assert_ok(ps_preprocessing_text(fitted, &text));
    assert_ok(ps_preprocessing_parse("x", text, &copy));
    assert_ok(ps_preprocessing_text(copy, &again));
    assert_string_equal(text, again);
    assert_int_equal(copy->n_inputs, fitted->n_inputs);
    ps_preprocessing_destroy(&copy);
    for (size_t n = 0; n < strlen(text); n++) { // cut anywhere
        char *part = strndup(text, n);
        assert_int_equal(ps_preprocessing_parse("x", part, &copy), PS_ERR_FORMAT);
        assert_null(copy);
        free(part);
    }
    free(text);
    free(again);
    done(&set);
}

/* As somebody may have changed a file of weights. */
TEST(a_state_that_does_not_fit_itself_is_refused)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"{\"classes\": true, \"columns\": [{\"name\": \"x\", \"std\": 1, "
         "\"categories\": [], \"shares\": []}], \"targets\": []}",
         "classes are of one target"},
        {"{\"columns\": [{\"name\": \"x\", \"std\": 1, \"categories\": [], \"shares\": "
         "[], \"embedded\": true}], \"targets\": []}",
         "an embedded column has no categories"},
        {"{\"columns\": [], \"targets\": []}", "it has no inputs"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ps_preprocessing *p = NULL;
        assert_error(ps_preprocessing_parse("w", cases[i].text, &p), PS_ERR_FORMAT,
                     cases[i].says);
        assert_null(p);
    }
}

static const char holes[] = "x,c,y\n1,a,0\n,b,1\n3,,1\n5,a,0\n";

TEST(missing_cells_by_choice)
{
    ps_config_data data = data_of("y\n");
    ps_dataset set;
    assert_error(parse(holes, &data, &classes, &set), PS_ERR_FORMAT,
                 "t.csv:3: column 1: \"\" is not a value of \"x\": fill it");
    data.missing = PS_MISSING_MEAN;
    data.standardize = false;
    assert_ok(parse(holes, &data, &classes, &set));
    check_row(&set, 1, (double[]){3, 0, 1}); // the mean of 1, 3, 5
    check_row(&set, 2, (double[]){3, 2. / 3, 1. / 3});
    done(&set);
    data.missing = PS_MISSING_OWN;
    data.standardize = true;
    assert_ok(parse(holes, &data, &classes, &set));
    check_row(&set, 0, (double[]){-2 / 1.632993161855452, 0, 1, 0, 0});
    check_row(&set, 1, (double[]){0, 1, 0, 1, 0});
    check_row(&set, 2, (double[]){0, 0, 0, 0, 1});
    done(&set);
    assert_error(parse("x,y\n1,0\n2,\n", &data, &classes, &set), PS_ERR_FORMAT,
                 "t.csv:3: column 2: \"\" is not a value of \"y\": fill it, or leave");
}

TEST(all_missing_cells_are_counted)
{
    const ps_config_data data = data_of("y\n");
    ps_dataset set;
    assert_error(
        parse("x,c,y\n1,,0\nNA,b,1\n3,,1\n", &data, &classes, &set), PS_ERR_FORMAT,
        "t.csv:3: column 1: \"NA\" is not a value of \"x\": fill it, set "
        "data.missing to mean or own, or leave out the line. Missing cells: 1 of "
        "\"x\", 2 of \"c\"");
}

/* Whether a column is of numbers or of categories is never decided by one cell. */
TEST(a_text_among_numbers_is_a_mistake)
{
    static const char stray[] = "x,z,y\n1,10,0\n2,20,1\nn.a.,10,1\n3,30,0\n";
    ps_config_data data = data_of("y\n");
    ps_dataset set;
    assert_error(parse(stray, &data, &classes, &set), PS_ERR_FORMAT,
                 "t.csv:4: column 1: \"n.a.\" is not a number, as 3 of the 4 values of "
                 "\"x\" are: write a number, or empty the cell and set data.missing; if "
                 "the column has categories, set data.categories to [x]");
    assert_error(parse("x,y\n\"0,5\",0\n\"0,7\",1\n", &data, &classes, &set),
                 PS_ERR_FORMAT, "\"0,5\" is not a number: write a point for the comma");
    data.categories = (char *)"x\nz\n";
    assert_ok(parse(stray, &data, &classes, &set));
    assert_int_equal(set.dims.d[0], 7);
    check_row(&set, 0, (double[]){1, 0, 0, 0, 1, 0, 0}); // 1, 2, 3, n.a.; 10, 20, 30
    check_row(&set, 2, (double[]){0, 0, 0, 1, 1, 0, 0});
    done(&set);
    assert_error(parse("x,y\n1,0\n", &data, &classes, &set), PS_ERR_FORMAT,
                 "there is no column \"z\" (is it \"x\"?), which data.categories names");
}

static void check_classes(const char *text, const int32_t *labels, int64_t n,
                          const char *first)
{
    const ps_config_data data = data_of("y\n");
    ps_dataset set;
    if (parse(text, &data, &classes, &set) != PS_OK)
        fail_msg("%s: %s", text, ps_err_message());
    assert_memory_equal(set.labels, labels, (size_t)n * sizeof *labels);
    if (first)
        assert_string_equal(ps_class_name(&set.names, 0), first);
    else
        assert_int_equal(set.names.n, 0);
    done(&set);
}

/* pandas.read_csv has int64 there: as many values as there are texts. A double has 53
 * bits. */
TEST(long_numbers_are_names_to_the_last_digit)
{
    static const char ids[] =
        "id,y\n123456789012345678,9007199254740993\n"
        "123456789012345679,9007199254740992\n"
        "123456789012345678,9007199254740992\n7.0,9007199254740993\n";
    ps_config_data data = data_of("y\n");
    ps_dataset set, again;
    data.categories = (char *)"id\n";
    assert_ok(parse(ids, &data, &classes, &set));
    assert_int_equal(set.dims.d[0], 3); // 7 and two ids
    check_row(&set, 0, (double[]){0, 1, 0});
    check_row(&set, 1, (double[]){0, 0, 1});
    check_row(&set, 2, (double[]){0, 1, 0});
    check_row(&set, 3, (double[]){1, 0, 0});
    assert_int_equal(set.names.n, 2);
    assert_string_equal(set.names.names[0], "9007199254740992");
    for (int i = 0; i < 4; i++)
        assert_int_equal(set.labels[i], i == 0 || i == 3);
    // By the same state.
    assert_ok(parse("y,id\n,123456789012345679\n,123456789012345677\n,7\n", &data,
                    &nothing, &again));
    check_row(&again, 0, (double[]){0, 0, 1});
    check_row(&again, 1, (double[]){0, 0, 0});
    check_row(&again, 2, (double[]){1, 0, 0});
    assert_non_null(strstr(again.doubts, "such as \"123456789012345677\""));
    ps_dataset_fini(&again);
    done(&set);
    // A column of such numbers is still one input.
    data.categories = (char *)"";
    assert_ok(parse(ids, &data, &classes, &set));
    assert_int_equal(set.dims.d[0], 1);
    done(&set);
    // Beside texts they would merge.
    static const char mixed[] = "id,y\na,0\nb,1\n123456789012345678,0\n";
    assert_error(parse(mixed, &data, &classes, &set), PS_ERR_FORMAT,
                 "\"id\" has texts, and numbers of more than 15 digits, such as "
                 "123456789012345680: set data.categories to [id]");
    data.categories = (char *)"id\n";
    assert_ok(parse(mixed, &data, &classes, &set));
    assert_ok(parse(mixed, &data, &nothing, &again));
    assert_null(again.doubts);
    ps_dataset_fini(&again);
    done(&set);
}

/* As pandas: a line of separators alone is one of missing cells. */
TEST(tabs_alone_are_missing_cells)
{
    ps_config_data data = data_of("y\n");
    ps_dataset set;
    data.missing = PS_MISSING_MEAN;
    data.standardize = false;
    assert_ok(parse("a\tb\ty\n1\t2\t0\n\t\t1\n\n3\t4\t2\n", &data, &classes, &set));
    assert_int_equal(set.n, 3);
    ps_dataset_fini(&set);
    ps_dataset again;
    assert_ok(parse("a\tb\n1\t2\n\t\n  \n3\t4\n", &data, &nothing, &again));
    assert_int_equal(again.n, 3);
    check_row(&again, 1, (double[]){2, 3});
    check_row(&again, 2, (double[]){3, 4});
    ps_dataset_fini(&again);
    ps_preprocessing_destroy(&fitted);
}

/* train.ignore_index stands beside classes that have names, in all files. */
TEST(ignored_labels_stand_beside_names)
{
    static const char text[] = "x,y\n1,dog\n2,-100\n3,cat\n";
    const ps_wanted ignoring = {.n = 2, .may_be_ignored = true, .ignore_index = -100};
    ps_config_data data = data_of("y\n");
    for (int i = 0; i < 2; i++) { // fitted, and by the same state
        ps_dataset set;
        assert_ok(parse(text, &data, &ignoring, &set));
        assert_memory_equal(set.labels, ((int32_t[]){1, -100, 0}), 3 * sizeof(int32_t));
        assert_int_equal(set.names.n, 2);
        ps_dataset_fini(&set);
    }
    ps_preprocessing_destroy(&fitted);
}

TEST(classes_have_names)
{
    check_classes("x,y\n1,cat\n2,ant\n3,none\n", (int32_t[]){1, 0, 2}, 3, "ant");
    check_classes("x,y\n1,10\n2,9\n3,9\n", (int32_t[]){1, 0, 0}, 3, "9");
    check_classes("y,x\n0,1\n2,1\n", (int32_t[]){0, 2}, 2, NULL);
}

static void check_bad(const char *text, const char *target, const ps_wanted *wanted,
                      const char *says)
{
    ps_config_data data = data_of(target);
    ps_dataset set;
    assert_true(parse(text, &data, wanted, &set) != PS_OK);
    if (!strstr(ps_err_message(), says)) fail_msg("%s: %s", text, ps_err_message());
    done(&set);
}

TEST(mistakes_are_named)
{
    check_bad(houses, "prize\n", &number,
              "t.csv:1: there is no column \"prize\" (is it \"price\"?), which "
              "data.target names; "
              "the first line has: id, city, area, price");
    check_bad("a,y\n1,2\n", "y\nspeed\nwidth\n", &number,
              "are no columns \"speed\", \"width\", which data.target");
    check_bad(
        "a,b,y\n1,,\n,2,3\n,4,\n", "y\n", &number,
        "t.csv:3: column 1: \"\" is not a value of \"a\": fill it, set data.missing to "
        "mean or own, or leave out the line. Missing cells: 2 of \"a\", 1 of \"b\", 2 "
        "of \"y\"");
    check_bad(
        "a,b,y\n1,x,0\n2,3,0\nz,4,0\n", "y\n", &number,
        "t.csv:4: column 1: \"z\" is not a number, as 2 of the 3 values of \"a\" are");
    check_bad("a,b,y\n1,x,0\n2,3,0\nz,4,0\n", "y\n", &number,
              "Such cells: 1 of \"a\", 1 of \"b\"");
    check_bad("a,a,y\n1,2,3\n", "a\n", &number, "two columns are named \"a\"");
    check_bad(
        "x,y\n1,cat\n", "y\n", &number,
        "t.csv:2: column 2: \"cat\" is not a number: for classes, leave model.loss");
    check_bad("y\n1\n", "y\n", &number, "no column is left to predict from");
    check_bad("x,y\n1,0.5\n", "y\n", &classes,
              "to predict numbers, set model.loss to mse");
    check_bad("x,y\n1,a\n1,b\n1,c\n1,d\n", "y\n", &classes,
              "has 4 classes (a, b, c, d), and the model 3 outputs: give the last layer "
              "4 outputs");
    const ps_wanted three = {.numbers = true, .n = 3};
    check_bad("x,y\n1,10\n1,20\n1,30\n1,40\n", "y\n", &three,
              "to predict it as a number, give the last layer 1 output; else give the "
              "last layer 4 outputs");
    check_bad("x,y,z\n1,2,3\n", "y\nz\n", &number,
              "2 columns; the model has 1 output: give the last layer 2 outputs");
    check_bad("x,y,z\n1,2,3\n", "y\nz\n", &classes, "set model.loss to mse, or name one");
    check_bad("x,y\n\xff,2\n", "y\n", &number, "is not UTF-8: convert the file");
    check_bad("\xff,y\n1,2\n", "y\n", &number, "is not UTF-8: convert the file");
    check_bad("x,y\n1,2,3\n", "y\n", &number, "t.csv:2: 3 fields; the first line has 2");
}

TEST(other_files_have_what_the_training_samples_have)
{
    const ps_config_data data = data_of("y\n");
    ps_dataset set, other;
    assert_ok(parse("x,c,y\n1,a,cat\n2,b,dog\n", &data, &classes, &set));
    assert_error(
        parse("x,c,y\n1,a,cow\n1,a,cat\n1,a,ape\n1,a,cow\n", &data, &classes, &other),
        PS_ERR_FORMAT,
        "t.csv:2: column 3: \"cow\" is not a class that the training samples have: mend "
        "it, or leave out the line. New classes: \"cow\", \"ape\", in 3 lines");
    assert_error(parse("x,c,y\none,a,cat\n", &data, &classes, &other), PS_ERR_FORMAT,
                 "t.csv:2: column 1: \"one\" is not a number: the training");
    assert_error(parse("x,y\n1,cat\n", &data, &classes, &other), PS_ERR_FORMAT,
                 "t.csv:1: a column is missing: \"c\"; the first line has: x, y");
    assert_error(parse("X,b,y\n1,2,cat\n", &data, &classes, &other), PS_ERR_FORMAT,
                 "t.csv:1: columns are missing: \"x\" (rename \"X\", if it is meant), "
                 "\"c\"");
    done(&set);
}

static void check_order(const char *text, const int64_t *want, const char *doubt)
{
    ps_config_data data = data_of("y\n");
    ps_table table;
    int64_t rows[3];
    data.test_by = (char *)"when";
    const ps_csv_options o = {.data = &data, .wanted = &classes};
    assert_ok(read_table(text, &o, &table));
    assert_int_equal(table.n, 3);
    assert_ok(ps_table_order(&table, rows));
    assert_memory_equal(rows, want, sizeof rows);
    if (!table.doubts != !doubt || (doubt && !strstr(table.doubts, doubt)))
        fail_msg("%s: %s", text, table.doubts ? table.doubts : "nothing");
    ps_table_fini(&table);
}

/* data.test_by takes the largest values: of dates the latest ones, if their texts are in
 * the order of the days. */
TEST(dates_that_texts_put_in_another_order_are_doubted)
{
    check_order("when,y\n2024-02-01,0\n2023-03-02,1\n2024-01-09,0\n",
                (int64_t[]){1, 2, 0}, NULL);
    check_order("when,y\n20240201,0\n20230302,1\n20240109,0\n", (int64_t[]){1, 2, 0},
                NULL);
    check_order(
        "when,y\n01.02.2024,0\n02.03.2023,1\n09.01.2024,0\n", (int64_t[]){0, 1, 2},
        "\"when\" is ordered as texts, such as \"01.02.2024\", in which years come last");
    check_order("when,y\n2/1/2024 7:00,0\n3/2/2023,1\n1/9/2024,0\n", (int64_t[]){2, 0, 1},
                "years come last");
    check_order("when,y\n1.5 m,0\n3.2 m,1\n2.1 m,0\n", (int64_t[]){0, 2, 1}, NULL);
}

/* A table is read with the column of data.test_by behind its keys. It is no key: its
 * numbers are not places in the list of texts. */
TEST(keys_are_the_columns_of_data_drop_alone)
{
    static const char text[] = "id,when,x,y\na,2024.5,1,0\nb,2023,2,1\nc,2025,4,2\n";
    ps_config_data data = data_of("y\n");
    ps_dataset set, again;
    data.test_by = (char *)"when";
    for (int i = 0; i < 2; i++) {
        data.drop = (char *)(i == 0 ? "id\n" : "when\nid\n");
        assert_ok(parse(text, &data, &classes, &set));
        assert_ok(parse(text, &data, &classes, &again));
        assert_int_equal(again.key_names.n, 1 + i);
        assert_string_equal(again.key_names.names[i], "id");
        assert_int_equal(again.keys.n, 3 * (1 + i));
        assert_string_equal(again.keys.names[3 * (1 + i) - 1], "c");
        if (i == 1) assert_string_equal(again.keys.names[0], "2024.5");
        ps_dataset_fini(&again);
        done(&set);
    }
}

/* A job that begins with the weights of another one. */
TEST(columns_that_weights_read_otherwise_are_refused)
{
    ps_config_data data = data_of("price\n");
    ps_dataset set, again;
    data.drop = (char *)"id\n";
    assert_ok(parse(houses, &data, &number, &set));
    static const struct {
        const char *drop, *columns, *categories, *says;
    } cases[] = {
        {"id\narea\n", "", "",
         "data.drop: the weights that are given (train.init) read \"area\""},
        {"", "city\n", "",
         "data.columns: the weights that are given (train.init) also read \"area\""},
        {"", "id\n", "",
         "data.columns: the weights that are given (train.init) do not read \"id\""},
        {"", "", "area\n",
         "data.categories: the weights that are given (train.init) read numbers"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        data.drop = (char *)cases[i].drop;
        data.columns = (char *)cases[i].columns;
        data.categories = (char *)cases[i].categories;
        assert_error(parse(houses, &data, &number, &again), PS_ERR_CONFIG, cases[i].says);
    }
    data.drop = (char *)"";
    data.columns = (char *)"area\ncity\n";
    data.categories = (char *)"city\n";
    assert_ok(parse(houses, &data, &number, &again));
    ps_dataset_fini(&again);
    done(&set);
}

/* Lines that are longer than a block of the reader, and cells in a file. */
IN_FOLDER(lines_are_read_in_blocks)
{
    enum { LINES = 3000 };
    const ps_config_data data = data_of("y\n");
    char *text = malloc(LINES * 1100), *path = strdup(temp_path("t.csv"));
    size_t n = (size_t)sprintf(text, "x,c,y\n");
    for (int i = 0; i < LINES; i++) { // a text of 1,000 bytes, with the end of a line
        n += (size_t)sprintf(text + n, "%d,\"%c\n", i, 'a' + i % 3);
        memset(text + n, ',', 1000);
        n += 1000;
        n += (size_t)sprintf(text + n, "\",%d\n", 2 * i);
    }
    assert_int_equal(temp_write("t.csv", text, n), 0);
    for (int stream = 0; stream < 2; stream++) {
        const ps_csv_options o = {
            .data = &data, .wanted = &number, .folder = stream ? folder.path : NULL};
        ps_table table;
        ps_dataset set;
        ps_preprocessing_destroy(&fitted);
        assert_ok(ps_csv_read(&path, 1, &o, &table));
        assert_int_equal(table.n, LINES);
        assert_ok(ps_table_keep(&table, (int64_t[]){1, 5, 2999}, 3));
        assert_ok(ps_table_fit(&table, &data, &number, &fitted));
        assert_ok(ps_table_samples(&table, fitted, &set));
        assert_int_equal(set.dims.d[0], 3); // x, and the two texts that are left: b, c
        assert_true((set.table->cells == NULL) == stream);
        assert_int_equal(ps_dataset_place(&set, 2), 2999);
        // numpy.std([1, 5, 2999]) = 1412.3288...
        check_row(&set, 0,
                  (double[]){(1 - 1001.6666666666666) / 1412.3288883574141, 1, 0});
        check_row(&set, 1,
                  (double[]){(5 - 1001.6666666666666) / 1412.3288883574141, 0, 1});
        ps_dataset_fini(&set);
    }
    ps_preprocessing_destroy(&fitted);
    free(text);
    free(path);
}

TEST(a_test_part_has_its_share_of_each_class)
{
    enum { N = 1000 };
    static uint64_t keys[N];
    static bool is_test[N], other[N];
    static int64_t rows[N];
    int64_t of_class[4] = {0};
    for (int i = 0; i < N; i++)
        keys[i] = i == 0 ? 3 : i % 10 == 0 ? 2 : i % 2;
    assert_ok(ps_test_part_random(keys, N, 0.2, 7, is_test));
    for (int i = 0; i < N; i++)
        of_class[keys[i]] += is_test[i];
    assert_in_range(of_class[0], 79, 81); // of 400
    assert_in_range(of_class[1], 99, 101);
    assert_in_range(of_class[2], 19, 21); // of 99
    assert_int_equal(of_class[3], 0);     // its only sample is trained on
    assert_int_equal(ps_test_part_rows(is_test, N, true, rows), 200);
    assert_int_equal(ps_test_part_rows(is_test, N, false, rows), 800);
    assert_ok(ps_test_part_random(keys, N, 0.2, 8, other));
    assert_memory_not_equal(is_test, other, sizeof other);
    ps_test_part_last((int64_t[]){3, 0, 1, 2}, 4, 0.5, is_test);
    assert_true(!is_test[3] && !is_test[0] && is_test[1] && is_test[2]);
}
