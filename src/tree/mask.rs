//! The two numbers that an additive attention mask holds.

/// Additive mask of a slot that a row sees.
pub const VISIBLE: f32 = 0.0;
/// Additive mask of a slot that a row does not see. Finite, so that no row's softmax is NaN, and
/// far enough below any score that its share underflows to an exact zero.
pub const MASKED: f32 = -1e4;
