// Gates of recurrent cells: one thread for each feature of each row.

// Which row of a pool a row's state is in; itself without a table.
DEVICE u64 source(const int *from, u32 row) { return from ? (u32)from[row] : row; }
// Which row it goes to, below zero for none; itself without a table.
DEVICE long long target(const int *to, u32 row) {
    return to ? (long long)to[row] : (long long)row;
}

KERNEL lstm_gates(const float *gates, const float *recurrent, const float *bias, float *cells,
                  const int *from, const int *to, float *hidden_pool, float *out, u32 len,
                  u32 hidden) {
    EACH_ITEM(i, len) {
        u32 row = i / hidden, j = i % hidden;
        float v[4];
        for (u32 gate = 0; gate < 4; gate++) {
            u64 at = ((u64)row * 4 + gate) * hidden + j;
            v[gate] = gates[at];
            if (recurrent) v[gate] += recurrent[at];
            v[gate] += bias[gate * hidden + j];
        }
        float keep = cells[source(from, row) * hidden + j] / logistic_divisor(v[1]);
        float2 fresh = tanh_parts(v[2]);
        float cell = fresh.x / (logistic_divisor(v[0]) * fresh.y) + keep;
        float2 shown = tanh_parts(cell);
        float h = shown.x / (logistic_divisor(v[3]) * shown.y);
        out[i] = h;
        if (target(to, row) >= 0) {
            u64 at = (u64)target(to, row) * hidden + j;
            cells[at] = cell;
            if (hidden_pool) hidden_pool[at] = h;
        }
    }
}

KERNEL gru_gates(const float *gates, const float *bias, const float *recurrent,
                 const float *recurrent_bias, float *states, const int *from, const int *to,
                 float *out, u32 len, u32 hidden) {
    EACH_ITEM(i, len) {
        u32 row = i / hidden, j = i % hidden;
        float x[3], h[3];
        for (u32 gate = 0; gate < 3; gate++) {
            u64 at = ((u64)row * 3 + gate) * hidden + j;
            x[gate] = gates[at];
            if (bias) x[gate] += bias[gate * hidden + j];
            h[gate] = recurrent[at];
            if (recurrent_bias) h[gate] += recurrent_bias[gate * hidden + j];
        }
        float reset = h[2] / logistic_divisor(x[0] + h[0]);
        float update = sigmoid_of(x[1] + h[1]);
        float fresh = tanh_of(reset + x[2]);
        float old = states[source(from, row) * hidden + j];
        float next = fmaf(1.0f - update, fresh, update * old);
        out[i] = next;
        if (target(to, row) >= 0) states[(u64)target(to, row) * hidden + j] = next;
    }
}
