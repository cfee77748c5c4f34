pub const DEFAULT_SEGMENT_US: f64 = 20.0;
