"""Laws of the error: its mean and covariance under noise, round by round and in the long run."""
