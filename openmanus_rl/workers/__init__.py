"""What computes with the policy, its reference and the critic."""
