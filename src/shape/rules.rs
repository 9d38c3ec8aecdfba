//! Shape rules that several operators share.
