/* Criteo's files: what is read, and what is said of what cannot be. */
#include <math.h>

#include "check.h"
#include "criteo.h"
#include "temp_files.h"

/* One line: counts 0 .. 12 from `first` on, ids 26 times. */
static char *line_of(char *out, const char *label, const char *count, const char *id)
{
    out += sprintf(out, "%s", label);
    for (int i = 0; i < PS_CRITEO_COUNTS; i++)
        out += sprintf(out, "%s%s", label[0] || i > 0 ? "\t" : "", count);
    for (int i = 0; i < PS_CRITEO_IDS; i++)
        out += sprintf(out, "\t%s", id);
    return out + sprintf(out, "\n");
}

IN_FOLDER(lines_of_two_files)
{
    char text[2048], path[2][384], *end = line_of(text, "1", "3", "05db9164");
    ps_dataset set;
    end = line_of(end, "0", "", "");
    assert_int_equal(temp_write("a.txt", text, (size_t)(end - text)), 0);
    snprintf(path[0], sizeof path[0], "%s", folder.name);
    end = line_of(text, "1", "-2", "FFFFFFFF");
    assert_int_equal(temp_write_gz("b.txt.gz", text, (unsigned)(end - text)), 0);
    snprintf(path[1], sizeof path[1], "%s", folder.name);
    char *const paths[] = {path[0], path[1]};
    assert_ok(ps_criteo_read(paths, 2, &set));
    assert_int_equal(set.n, 3);
    assert_string_equal(set.notes,
                        "counts that are taken as 0: 13 missing, 13 below 0, of 39");
    assert_int_equal(set.dims.d[0], PS_CRITEO_COUNTS);
    static const int64_t ids[] = {0x05db9164, PS_CRITEO_MISSING, 0xffffffff};
    const float counts[] = {(float)log(4), 0, 0};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(set.labels[i], i != 1);
        for (int k = 0; k < PS_CRITEO_COUNTS; k++)
            assert_true(((float *)set.values)[i * PS_CRITEO_COUNTS + k] == counts[i]);
        for (int k = 0; k < PS_CRITEO_IDS; k++)
            assert_true(set.ids[i * PS_CRITEO_IDS + k] == ids[i]);
    }
    static const int64_t rows[] = {2};
    assert_ok(ps_dataset_slice(&set, 0, 2));
    assert_ok(ps_dataset_keep(&set, rows, 1));
    assert_true(set.ids[0] == 0xffffffff && set.ids[PS_CRITEO_IDS - 1] == 0xffffffff);
    ps_dataset_fini(&set);
}

static void check_stored(const ps_dataset *set, int64_t sample, int64_t line)
{
    char room[PS_CRITEO_COUNTS * sizeof(float) + PS_CRITEO_IDS * sizeof(int64_t)];
    float counts[PS_CRITEO_COUNTS];
    int64_t ids[PS_CRITEO_IDS];
    assert_int_equal(ps_sample_file_room(set->stream), sizeof room);
    assert_ok(ps_sample_file_read(set->stream, sample, room));
    memcpy(counts, room, sizeof counts);
    memcpy(ids, ps_sample_file_more(set->stream, room), sizeof ids);
    assert_int_equal(set->labels[sample], line % 3 == 0);
    for (int k = 0; k < PS_CRITEO_COUNTS; k++)
        assert_true(counts[k] == (float)log1p((double)line));
    for (int k = 0; k < PS_CRITEO_IDS; k++)
        assert_int_equal(ids[k], line);
}

/* data.stream: labels alone are in memory. */
IN_FOLDER(lines_that_stay_in_a_file)
{
    enum { LINES = 9000 };
    char *text = malloc(LINES * 320), *end = text, count[16], id[16];
    ps_dataset set;
    assert_non_null(text);
    for (int i = 0; i < LINES; i++) {
        snprintf(count, sizeof count, "%d", i);
        snprintf(id, sizeof id, "%x", (unsigned)i);
        end = line_of(end, i % 3 == 0 ? "1" : "0", count, id);
    }
    assert_int_equal(temp_write("a.txt", text, (size_t)(end - text)), 0);
    free(text);
    char *const paths[] = {folder.name};
    assert_ok(ps_criteo_open(paths, 1, NULL, &set));
    assert_int_equal(set.n, LINES);
    assert_true(!set.values && !set.ids && set.stream);
    for (int64_t i = 0; i < LINES; i++)
        check_stored(&set, i, i);
    static const int64_t rows[] = {0, 5000};
    assert_ok(ps_dataset_slice(&set, 10, LINES - 1));
    check_stored(&set, 0, 10);
    assert_ok(ps_dataset_keep(&set, rows, 2));
    check_stored(&set, 1, 5010);
    ps_dataset_fini(&set);
}

static ps_err parse(const char *label, const char *count, const char *id, ps_dataset *set)
{
    char text[2048];
    const size_t n = (size_t)(line_of(text, label, count, id) - text);
    return ps_criteo_parse_new("t.txt", text, n, set);
}

TEST(new_samples_may_lack_the_label)
{
    ps_dataset set;
    assert_ok(parse("", "2", "a", &set));
    assert_true(!set.answered && set.labels[0] == 0 && set.ids[0] == 10);
    ps_dataset_fini(&set);
    assert_ok(parse("1", "2", "a", &set));
    assert_true(set.answered && set.labels[0] == 1 && !set.notes && !set.doubts);
    ps_dataset_fini(&set);
    assert_ok(parse("1", "2", "100000000", &set)); // 2^32, which missing ones are, too
    assert_non_null(strstr(set.doubts, "as which missing ones count: 26:"));
    ps_dataset_fini(&set);
}

/* It is no blank line. */
TEST(a_line_of_tabs_alone_is_a_sample)
{
    char text[4096], *end = line_of(text, "", "2", "a");
    ps_dataset set;
    end = line_of(end, "", "", "");
    end = line_of(end, "", "3", "b");
    end = line_of(end, "", "", "");
    assert_ok(ps_criteo_parse_new("t.txt", text, (size_t)(end - text - 1), &set));
    assert_int_equal(set.n, 4); // the last one without the end of its line
    assert_true(!set.answered);
    static const int64_t ids[] = {10, PS_CRITEO_MISSING, 11, PS_CRITEO_MISSING};
    for (int i = 0; i < 4; i++)
        assert_true(set.ids[i * PS_CRITEO_IDS] == ids[i]);
    assert_string_equal(set.notes,
                        "counts that are taken as 0: 26 missing, 0 below 0, of 52");
    ps_dataset_fini(&set);
}

static void refused(const char *label, const char *count, const char *id,
                    const char *says)
{
    ps_dataset set;
    assert_error(parse(label, count, id, &set), PS_ERR_FORMAT, says);
    assert_null(set.values);
}

TEST(what_is_refused)
{
    refused("2", "1", "a", "t.txt:1: column 1: \"2\" is not a label, 0 or 1");
    refused("0", "1.5", "a", "t.txt:1: column 2: \"1.5\" is not a count");
    refused("0", "1", "0x1", "t.txt:1: column 15: \"0x1\" is not an id");
    refused("0", "1", "8000000000000000", "column 15");
    refused("0", "1", "1\t2", "t.txt:1: 66 columns; Criteo's lines have");
    refused("\t", "", "", "t.txt:1: 41 columns; Criteo's lines have"); // one tab more
    refused(" ", "", "", "t.txt:1: column 1: \"\" is not a label, 0 or 1");
    ps_dataset set;
    char none[2] = "\n";
    assert_int_equal(ps_criteo_parse_new("t.txt", none, 1, &set), PS_ERR_FORMAT);
}
