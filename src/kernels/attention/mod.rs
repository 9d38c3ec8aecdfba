pub mod attention;
pub mod kv_append;
pub mod kv_append_q8;
pub mod rotary;
pub mod rotary_append;
