/* Every member is found by its routing id, and by no other, however members come and go.
 */
#include "check.h"
#include "coord_state.h"

enum { MEMBERS = 300, LINKS = 3 };

static ps_coordinator *with_members(void)
{
    ps_coordinator *c = calloc(1, sizeof *c);
    assert_non_null(c);
    c->peers = calloc(MEMBERS, sizeof *c->peers);
    assert_non_null(c->peers);
    assert_ok(ps_coord_index_init(&c->index, MEMBERS));
    for (int i = 0; i < MEMBERS; i++) {
        assert_ok(ps_secret_draw(&c->peers[i].secret));
        // Some secrets begin alike: a search must go on to the right one.
        if (i % 3) memcpy(c->peers[i].secret.bytes, c->peers[i - 1].secret.bytes, 8);
    }
    c->n_peers = MEMBERS;
    ps_coord_index_renew(c);
    return c;
}

static void end(ps_coordinator *c)
{
    ps_coord_index_fini(&c->index);
    free(c->peers);
    free(c);
}

static const ps_coord_peer *found(ps_coordinator *c, const ps_secret *secret,
                                  unsigned link)
{
    ps_control_id id;
    ps_control_id_make(&id, secret, link);
    return ps_coord_index_find(c, &id);
}

TEST(all_are_found_by_every_link)
{
    ps_coordinator *c = with_members();
    for (int i = 0; i < MEMBERS; i++)
        for (unsigned link = 0; link < LINKS; link++)
            assert_ptr_equal(found(c, &c->peers[i].secret, link), &c->peers[i]);
    end(c);
}

TEST(strangers_are_not_found)
{
    ps_coordinator *c = with_members();
    ps_secret other;
    assert_ok(ps_secret_draw(&other));
    assert_null(found(c, &other, 0));
    other = c->peers[7].secret;
    other.bytes[sizeof other.bytes - 1] ^= 1; // all but the last byte are right
    assert_null(found(c, &other, 0));
    end(c);
}

TEST(who_has_left_is_not_found_and_the_rest_is)
{
    ps_coordinator *c = with_members();
    while (c->n_peers > 1) {
        const ps_secret gone = c->peers[0].secret;
        c->peers[0] = c->peers[--c->n_peers];
        ps_coord_index_renew(c);
        assert_null(found(c, &gone, 0));
        for (int i = 0; i < c->n_peers; i += 29)
            assert_ptr_equal(found(c, &c->peers[i].secret, 1), &c->peers[i]);
    }
    end(c);
}
