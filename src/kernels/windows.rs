//! Defines of kernels over windows.

/// Size, stride and dilation of windows along rows.
pub const ROWS: [&str; 3] = ["KH", "SH", "DH"];
/// The same along columns.
pub const COLUMNS: [&str; 3] = ["KW", "SW", "DW"];
