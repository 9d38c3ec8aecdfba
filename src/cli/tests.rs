use super::*;

#[test]
fn the_description_is_consistent() {
    command().debug_assert();
}
