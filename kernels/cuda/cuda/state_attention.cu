// state_attention
